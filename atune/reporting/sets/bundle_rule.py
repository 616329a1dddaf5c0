"""A bundle's dispatch rules, as plain data: which of its kernels serves a problem that was never tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atune.journal.result import Result
from atune.model.candidate import config_key, thaw
from atune.model.problem import is_size
from atune.reporting.sets.dispatch import dispatch_rule
from atune.reporting.sets.regret import RegretMatrix, regret_of
from atune.reporting.sets.rule import Branch, Leaf, NearestRule

Entry = dict[str, Any]
"""A problem of a manifest."""
TIED = 1e-9
"""Least regret of a kernel on another's problem, so that a problem that was tuned is served by its own."""


def with_regret(problems: Sequence[Entry], results: Sequence[Result], before: Mapping[str, Any] | None) -> list[Entry]:
    """Return the problems of the manifest `before` and those of `results`, with what each kernel costs on each.

    ``regret``: by the kernel of each problem, its latency over that of the problem's own, less one; None where it was
    not measured.
    """
    old: Sequence[Entry] = [] if before is None else before["problems"]
    old_keys = [config_key(one["config"]) for one in old]
    known: dict[str, dict[str, float | None]] = {
        config_key(one["problem"]): dict(zip(old_keys, one["regret"], strict=True)) for one in old
    }
    joined = {config_key(one["problem"]): one for one in (*old, *problems)}
    for one, result in zip(problems, results, strict=True):
        measured = regret_of(result)
        own = measured.get(config_key(one["config"]), 0.0)
        costs = {key: round(max(0.0, (1 + regret) / (1 + own) - 1), 6) for key, regret in measured.items()}
        known[config_key(one["problem"])] = {**costs, config_key(one["config"]): 0.0}
    keys = [config_key(one["config"]) for one in joined.values()]
    return [one | {"regret": [known[problem].get(key) for key in keys]} for problem, one in joined.items()]


def rules(kernel: str, problems: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return the rules of a bundle: one for the problems whose kernels take the same arguments.

    Kernels of fixed sizes take no others, so they have none. A rule that could not be tested is left out. ``sizes``:
    the range of the problems. ``root``: the positions of problems, the nearest of which serves; or a question.
    """
    classes: dict[str, list[int]] = {}
    for position, one in enumerate(problems):
        classes.setdefault(config_key({"params": one["params"], "outputs": one["outputs"]}), []).append(position)
    found = []
    for alike in classes.values():
        names = _sizes([problems[i]["problem"] for i in alike])
        groups: dict[str, list[int]] = {}
        for i in alike:
            groups.setdefault(config_key(_others(problems[i]["problem"], names)), []).append(i)
        found += [rule for group in groups.values() if (rule := _rule(kernel, problems, group, names)) is not None]
    return found


def _sizes(problems: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(name for name in sorted(problems[0]) if all(is_size(one.get(name)) for one in problems))


def _others(problem: Mapping[str, Any], sizes: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in problem.items() if name not in sizes}


def _rule(kernel: str, problems: Sequence[Entry], group: Sequence[int], sizes: Sequence[str]) -> Entry | None:
    """Return the rule for the problems at the positions `group`; None where none can be tested."""
    places: dict[str, list[int]] = {}
    for i in group:
        places.setdefault(config_key(problems[i]["config"]), []).append(i)
    keys = sorted(places)
    matrix = RegretMatrix(
        kernel=kernel,
        problems=tuple(thaw(problems[i]["problem"]) for i in group),
        configs=tuple(thaw(problems[places[key][0]]["config"]) for key in keys),
        regret=tuple(tuple(_cost(problems[i], i in places[key], places[key][0]) for i in group) for key in keys),
        winners=tuple(keys.index(config_key(problems[i]["config"])) for i in group),
    )
    rule = dispatch_rule(matrix, [problems[i]["weight"] for i in group])
    if not rule.tested:
        return None
    kernels = [places[config_key(config)] for config in rule.configs]
    root = {"problems": list(group)} if isinstance(rule, NearestRule) else _node(rule.trees[0].root, kernels)
    values = {name: [problems[i]["problem"][name] for i in group] for name in sizes}
    return {
        "kind": "nearest" if isinstance(rule, NearestRule) else "tree",
        "regret": rule.regret,
        "worst_regret": rule.worst_regret,
        "tested": rule.tested,
        "unmeasured": rule.unmeasured,
        "others": _others(problems[group[0]]["problem"], sizes),
        "sizes": {name: [min(one), max(one)] for name, one in values.items()},
        "root": root,
    }


def _cost(problem: Entry, own: bool, position: int) -> float | None:
    regret = problem["regret"][position]
    return 0.0 if own else None if regret is None else max(TIED, regret)


def _node(node: Branch | Leaf, kernels: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return a tree with the positions of problems in its leaves. `kernels`: these, by configuration."""
    if isinstance(node, Leaf):
        return {"problems": list(kernels[node.config])}
    sides = {"small": _node(node.small, kernels), "large": _node(node.large, kernels)}
    return {"size": node.size, "most": node.most, **sides}
