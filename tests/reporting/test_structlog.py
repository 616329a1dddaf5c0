"""`log=`: the events of a run as entries of the caller's own logger."""

from __future__ import annotations

import io
import json
import logging
import warnings
from pathlib import Path
from typing import Any, get_args

import pytest
import structlog
from drop_in_tuners import BLOCKS, cpu_tuner
from event_streams import Stream
from guide_kernels import scaled

import atune
from atune.errors import UsageError
from atune.journal.events import AnyEvent, Warned
from atune.reporting.log import DETAILS, WARNINGS, event_log, stream_logger
from atune.testing import FakeMachine, Script

pytestmark = pytest.mark.anyio


async def test_a_run_is_logged_with_the_fields_of_its_events(configured: list[Any]) -> None:
    """One entry an event, in their order, with what the logger was bound to. Debug entries alone have the samples."""
    events: list[atune.events.Event] = []
    machine = FakeMachine(5, Script(fails={2: "compile"}))
    result = await atune.tune(machine=machine, log=structlog.get_logger(job=7), on_event=events.append)
    entries = [entry for entry in configured if not entry["event"].endswith("_details")]
    tags = [str(type(event).__struct_config__.tag) for event in events]
    assert [(e["event"], e["seq"], e["job"]) for e in entries] == [(t, n, 7) for n, t in enumerate(tags)]
    levels = {(entry["event"], entry["log_level"]) for entry in entries}
    assert levels > {("candidate_proposed", "debug"), ("candidate_measured", "info"), ("build_failed", "warning")}
    for entry in entries:
        if "index" in entry:
            assert entry["config"] == result.records[entry["index"]].config
    timed = {entry["event"] for entry in entries if {"config", "latency_ms", "spread"} <= entry.keys()}
    assert timed == {"candidate_measured", "best_changed", "final_ordered", "run_finished"}
    assert (entries[-1]["config"], entries[-1]["latency_ms"]) == (result.best_config, result.latency_ms)
    with_samples = {entry["event"] for entry in configured if "samples_us" in str(entry)}
    assert with_samples == {f"{name}_details" for name in ("reference_measured", "candidate_measured", "final_ordered")}
    assert {entry["log_level"] for entry in configured if entry["event"] in with_samples} == {"debug"}


async def test_a_run_that_goes_on_logs_what_is_new(configured: list[Any], tmp_path: Path) -> None:
    for budget in (2, 4):
        await atune.tune(machine=FakeMachine(4), budget=budget, journal=tmp_path / "j")
    seqs = [entry["seq"] for entry in configured if not entry["event"].endswith("_details")]
    assert seqs == sorted(set(seqs)) and {entry["run"] for entry in configured} == {"j"}


def test_decorated_kernels_and_the_drop_in_are_in_the_programs_own_structlog(configured: list[Any]) -> None:
    atune.autotune(space=BLOCKS, target="c", out_idx=-1, tuning="quick")(scaled)(80)
    cpu_tuner(n=96).run()
    assert [entry["workload"] for entry in configured if entry["event"] == "run_finished"] == ["scaled", "scaled"]


REFUSALS = [
    ({"processors": [lambda *_: {}["run"]]}, "lost an entry: KeyError: 'run'; log=False stops logging"),
    ({"logger_factory": lambda: structlog.ReturnLogger()}, ""),
    ({"logger_factory": lambda name: structlog.ReturnLogger()}, "structlog failed: TypeError: "),
    ({"wrapper_class": structlog.BoundLoggerBase}, "structlog failed: AttributeError: "),
]


@pytest.mark.parametrize(("how", "why"), REFUSALS)
async def test_a_structlog_that_nobody_gave_costs_no_run(configured: object, how: Any, why: str) -> None:
    structlog.configure(**how)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")
        atune.autotune(space=BLOCKS, target="c", cache=False, on_miss="default")(scaled)
        assert not warned
        assert (await atune.tune(machine=FakeMachine(4))).measured == 4
    assert [str(one.message).startswith(f"log: {why}") for one in warned] == [True] * bool(why)


async def test_a_logger_of_logging_gets_each_entry_as_text_and_as_data(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "app"):
        result = await atune.tune(machine=FakeMachine(4), log=logging.getLogger("app"))
    last: Any = caplog.records[-1]
    assert (last.levelname, last.atune["config"]) == ("INFO", result.best_config)
    assert last.getMessage().startswith("run_finished {'run': 'fake-") and "samples_us" not in caplog.text


class Awaited:
    """A logger whose methods are coroutines."""

    async def info(self, event: str, **fields: Any) -> None: ...

    bind = debug = warning = info


@pytest.mark.parametrize("what", [True, print, 3, "info", Awaited()])
def test_what_takes_no_fields_is_refused(what: Any) -> None:
    with pytest.raises(UsageError, match=r"log: must be a logger of structlog, such as .*, or of logging, got"):
        event_log(what)
    with pytest.raises(UsageError, match="log: must be a logger of structlog"):
        atune.autotune(space={"a": [1]}, log=what)


@pytest.mark.parametrize("text", ["plain", "µ → 𝄞", 'quoted "\\'])
def test_the_command_lines_json_is_ascii_whatever_the_text(text: str) -> None:
    """A stream in another encoding takes it, and readers get the text back."""
    out = io.StringIO()
    Stream().add(Warned, message=text).logged(stream_logger(out))
    assert out.getvalue().isascii() and json.loads(out.getvalue().splitlines()[1])["text"] == text


def test_every_event_can_be_logged() -> None:
    """No field stands in the way of the entry's name, or of what a record of `logging` has already."""
    taken = {"event", "self", "asctime", *vars(logging.makeLogRecord({}))}
    assert not [kind for kind in get_args(AnyEvent) if taken & {*kind.__struct_fields__}]
    assert {kind.__struct_config__.tag for kind in get_args(AnyEvent)} >= DETAILS | WARNINGS
