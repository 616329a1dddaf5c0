"""Which tests need tilelang or torch. `make test-light` runs the others, in an environment that has neither."""

from importlib.util import find_spec
from pathlib import Path

import pytest

NEEDS_TILELANG = (
    "bundle", "cicc", "compat", "decorator", "frontend", "local", "sets", "test_000_pipeline",

    "test_bad_input", "test_bench_prior", "test_bench_record", "test_bench_spaces",
    "test_checks", "test_cli_basic", "test_cli_dry_run", "test_cli_explain", "test_cli_failures",
    "test_compile_all", "test_default_at_every_door", "test_compile_flags", "test_demo", "test_devices", "test_docs",
    "test_device_errors", "test_001_eager",
    "test_docs_commands", "test_docstrings", "test_doors", "test_examples", "test_exec_texts", "test_explaining",
    "test_foreseen", "test_guards", "test_interrupted",
    "test_004_layouts", "test_limits", "test_loading", "test_nodes", "test_notebook",
    "test_packing", "test_comparing", "test_result_cache", "test_screens", "test_store", "test_service",
    "test_streams", "test_strides", "test_structlog", "test_tilelang_contract", "test_torch_op",
    "test_untested_tilelang", "test_warm_servers", "test_work", "test_workload", "test_outputs", "test_pick",
    "test_changed_values", "test_elsewhere", "test_evidence", "test_merging", "test_native_arguments", "test_packages",
    "test_sending", "test_written_values", "test_values", "test_002_guide", "test_002_guide_reference",
    "test_003_cutile", "test_attacks", "test_measure",
)  # fmt: skip
"""Folders and modules in which at least one test loads a kernel, here or in a worker."""

NAMED, TESTS = set(NEEDS_TILELANG), Path(__file__).parent


def refuse_other_environments() -> None:
    """Raise UsageError where the light tests could use tilelang or torch unnoticed."""
    for name in ("tilelang", "torch"):
        if find_spec(name) is not None:
            raise pytest.UsageError(f"--light is for an environment without {name}; make test-light sets one up")


def needs_tilelang(path: Path) -> bool:
    """Tell whether a folder or a file is named, or lies in a named folder."""
    return path.is_relative_to(TESTS) and not NAMED.isdisjoint(path.relative_to(TESTS).with_suffix("").parts)
