"""Candidate → Lowered: elaborates and lowers a kernel, generates its source, and reads the facts known before any
compiler runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from atune.model.artifact import Lowered
from atune.model.candidate import Candidate
from atune.model.layouts import Layouts
from atune.stages import tilelang
from atune.stages.compile import facts
from atune.stages.compile.facts import instruments
from atune.stages.compile.keys import How, digest, how_of, includes_users_files, key_of, preamble, store_key_of
from atune.stages.compile.steps import backend_context, printed
from atune.stages.compile.work import work_of
from atune.stages.frontend.frontend import elaborated, kernel_parameters
from atune.stages.session.session import session, workload

SYMBOL = "atune_kernel_{key}"
"""A candidate's global symbol. It occurs nowhere else, so that replacing it in the source is safe."""

Known = Callable[[str], Lowered | None]
"""Finds an earlier run's lowering of the same kernel, by its `ir_key`."""


class Blob(msgspec.Struct, frozen=True, kw_only=True):
    """Input of codegen. `host`, `device`: both lowered modules, in tvm's JSON."""

    symbol: str
    host: str
    device: str
    source: str
    """The device's half as printed."""
    source_key: str
    pass_configs: dict[str, Any]
    calls: tuple[int | str, ...] = ()
    """For the CPU, the meaning of each argument of the C function."""
    flags: tuple[str, ...] | None = None
    """The compiler's flags; None for the target's own."""


def lower(candidate: Candidate, known: Known = lambda key: None) -> Lowered:
    """Lower one candidate. Raises whatever elaboration or tilelang raises.

    If an earlier run's answer is `known`, nothing is lowered, and the answer has no blob.
    """
    started, work = time.perf_counter(), workload()
    context, symbol = backend_context(), SYMBOL.format(key=candidate.key)
    how = how_of(candidate.config, session().target, session().compile, work.pass_configs)
    function = elaborated(work.kernel, work.arguments, candidate.config, context.target)
    function = function.with_attr("global_symbol", symbol)
    ir_key = key_of(function, how)
    if (found := known(ir_key)) is not None:
        seconds = round(time.perf_counter() - started, 4)
        return msgspec.structs.replace(found, index=candidate.index, seconds=seconds, blob=b"")
    configs = tilelang.normalize_pass_configs(dict(how.pass_configs))
    seen: list[Layouts] = []
    with tilelang.tvm.transform.PassContext(opt_level=3, config=configs, instruments=instruments(seen)), context.target:
        host, device, *_ = tilelang.lower_to_host_device_ir(function, context)
        lowered = _generated(candidate, function, host, device, how)
    found_facts = msgspec.structs.replace(lowered.facts, layouts=seen[-1] if seen else None)
    seconds = round(time.perf_counter() - started, 4)
    return msgspec.structs.replace(lowered, ir_key=ir_key, facts=found_facts, seconds=seconds)


def _generated(candidate: Candidate, function: Any, host: Any, device: Any, how: How) -> Lowered:
    """Print the sources of a lowered kernel, and collect its facts."""
    symbol, on_cpu = SYMBOL.format(key=candidate.key), how.kind == "c"
    source = printed(device)
    # The grid, the TMA descriptors and the launch's shared memory. C sources are merged as text.
    host_source = "" if on_cpu else str(tilelang.host_codegen(host, backend_context()).inspect_source())
    if symbol not in source:
        raise RuntimeError(f"the generated source does not contain {symbol}; tilelang renamed the kernel")
    parameters = kernel_parameters(function)
    calls = facts.c_arguments(function, device) if on_cpu else ()
    source_key = digest((source.replace(symbol, "K"), host_source.replace(symbol, "K")))
    code_key = digest((source_key, parameters, calls, *how.key()))
    blob = Blob(
        symbol=symbol,
        host="" if on_cpu else str(tilelang.tvm.ir.save_json(host)),
        device=str(tilelang.tvm.ir.save_json(device)),
        source=source,
        source_key=source_key,
        pass_configs=dict(how.pass_configs),
        calls=calls,
        flags=how.flags,
    )
    found_facts = facts.static_facts(how.kind, device, source)
    if not on_cpu:
        found_facts = msgspec.structs.replace(found_facts, work=work_of(function))
    attributes = sorted(map(str, dict(device.attrs or {}).items()))
    together = (how.target, how.flags, how.pass_configs, preamble(source), attributes)
    return Lowered(
        index=candidate.index,
        code_key=code_key,
        store_key=store_key_of(code_key),
        merge_key=digest(together),
        source_key=source_key,
        params=parameters,
        facts=found_facts,
        seconds=0.0,
        blob=msgspec.msgpack.encode(blob),
        storable=not includes_users_files(source, how.flags),
    )
