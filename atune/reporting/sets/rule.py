"""A rule that says which configuration a problem gets that was never tuned: plain data, which JSON keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import msgspec

from atune.errors import UsageError
from atune.model.candidate import Config, config_key, describe_config
from atune.model.problem import distance, is_size
from atune.model.space import Space


class DispatchRule(msgspec.Struct, frozen=True, kw_only=True, tag_field="rule", dict=True):
    """What all rules have. `dispatch_rule` makes one, and says what `regret` and the fields below it count."""

    configs: tuple[Config, ...]
    """The configurations that it chooses from."""
    sizes: tuple[str, ...]
    """Arguments of which the logarithm counts. All others must be equal to those of a tuned problem."""
    regret: float | None = None
    """Weighted mean regret on problems left out; None where none could be."""
    worst_regret: float | None = None
    """The largest of these."""
    tested: int = 0
    """Problems that it is the mean of."""
    unmeasured: int = 0
    """Problems left out whose chosen configuration was not measured, or failed, there."""
    asks: tuple[str, ...] = ()
    """Sizes that functions of the space take, which `pick` therefore asks. Data has no functions."""

    def over(self, space: Space) -> Self:
        """Return the rule with the space that `pick` asks. JSON does not keep it."""
        vars(self)["space"] = space
        return self

    def split(self, arguments: Mapping[str, Any]) -> tuple[str, dict[str, float]] | None:
        """Return a key of the arguments that must be equal, and the sizes; None where one is no number above zero.

        Raises `UsageError` where a size is missing.
        """
        if lacks := [name for name in self.sizes if name not in arguments]:
            given = describe_config(dict(arguments)) or "no arguments"
            raise UsageError(f"a rule over {', '.join(self.sizes)} was asked for {given}: give {', '.join(lacks)} too")
        sizes = {name: arguments[name] for name in self.sizes if is_size(arguments.get(name))}
        if len(sizes) < len(self.sizes):
            return None
        return config_key({name: value for name, value in arguments.items() if name not in sizes}), sizes


class Point(msgspec.Struct, frozen=True):
    """A tuned problem. `config`: an index in the rule's `configs`."""

    sizes: dict[str, float]
    config: int


class Group(msgspec.Struct, frozen=True):
    """The tuned problems with these other arguments, by their sizes."""

    others: dict[str, Any]
    points: tuple[Point, ...]


class NearestRule(DispatchRule, frozen=True, kw_only=True, tag="nearest"):
    """The configuration of the nearest tuned problem, by the sum of the log2 ratios of the sizes."""

    groups: tuple[Group, ...]
    """The tuned problems by their other arguments. Of those that are equally near the first counts."""

    def pick(self, arguments: Mapping[str, Any]) -> int | None:
        """Return the index in `configs` for a problem; None where arguments that must be equal fit no tuned one.

        Of a space that asks for sizes it is the nearest that the space has for the problem, or None. Raises
        `UsageError` where a size is missing, and where that space is not here, unless the problem was tuned.
        """
        if (found := self.split(arguments)) is None:
            return None
        key, sizes = found
        points = next((group.points for group in self.groups if config_key(group.others) == key), ())
        near = sorted(points, key=lambda point: distance(sizes, point.sizes))
        if self.asks and near and near[0].sizes != sizes:
            space: Space | None = vars(self).get("space")
            if space is None:
                new = f"{describe_config(dict(arguments))} was never tuned, and where= takes {', '.join(self.asks)}"
                raise UsageError(f"{new}: give the space to be asked, rule.over(space)")
            has, unlisted = space.points(arguments), not space.computed
            near = [point for point in near if has.serves(self.configs[point.config], unlisted=unlisted)]
        return near[0].config if near else None


class Leaf(msgspec.Struct, frozen=True, tag="leaf", tag_field="node"):
    """The end of a branch. `config`: an index in the rule's `configs`."""

    config: int


class Branch(msgspec.Struct, frozen=True, tag="branch", tag_field="node"):
    """Where a tree asks for the size `size`: up to `most` goes to `small`, more to `large`."""

    size: str
    most: float
    small: Branch | Leaf
    large: Branch | Leaf


class Tree(msgspec.Struct, frozen=True):
    """The tree for problems with these other arguments."""

    others: dict[str, Any]
    root: Branch | Leaf


class TreeRule(DispatchRule, frozen=True, kw_only=True, tag="tree"):
    """Decision trees over the sizes, one for each combination of the other arguments."""

    trees: tuple[Tree, ...]
    """By their other arguments."""

    def pick(self, arguments: Mapping[str, Any]) -> int | None:
        """Return the index in `configs` for a problem; None where arguments that must be equal fit no tuned one.

        Raises `UsageError` where a size is missing.
        """
        if (found := self.split(arguments)) is None:
            return None
        key, sizes = found
        node = next((tree.root for tree in self.trees if config_key(tree.others) == key), None)
        while isinstance(node, Branch):
            node = node.small if sizes[node.size] <= node.most else node.large
        return None if node is None else node.config


AnyRule = NearestRule | TreeRule
"""The union that `msgspec.json.decode(text, type=AnyRule)` reads."""
