"""The page of a set: its table, maps over two sizes, the regret of the winners, few that serve all, and the rule."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from atune.errors import UsageError
from atune.journal.result import Result
from atune.journal.set_folder import TunedProblem, tuned_problems
from atune.model.candidate import describe_config, printable
from atune.reporting.page import (
    breakable,
    counts_html,
    environment_section,
    figures_html,
    file_text,
    unbroken,
    warnings_section,
    whole_page,
    winner_figures,
    winner_notes,
)
from atune.reporting.plots import drawable
from atune.reporting.report import environment
from atune.reporting.sets.cover import Cover, cover
from atune.reporting.sets.dispatch import dispatch_rule
from atune.reporting.sets.maps import map_data, map_sections
from atune.reporting.sets.reading import why
from atune.reporting.sets.regret import RegretMatrix, regret_matrix
from atune.reporting.sets.rule import AnyRule, Branch, Leaf, TreeRule

COLUMNS = 26
"""Most configurations whose regret the page shows: those that win most often."""


class SetFindings(NamedTuple):
    """What the winners of a set have in common. `names`: by row of the matrix, the letter of a configuration."""

    matrix: RegretMatrix
    few: Cover | None
    why: str
    """Why there is no cover."""
    rule: AnyRule
    names: dict[int, str]


def set_report(folder: Path) -> str:
    """Return the page for a set's folder. Raises `UsageError` if it is no such folder, and `JournalError`."""
    return set_page(tuned_problems(folder), folder)


def set_page(rows: Sequence[TunedProblem], folder: Path) -> str:
    """Return the page for the problems of a set; `folder` is where their journals lie."""
    won = [row for row in rows if row.won]
    found = _found(won) if won else None
    begun = [row.result for row in rows if row.result is not None]
    kernel = next((result.header.workload for result in begun if result.header is not None), "a set")
    title = f"{printable(kernel)}: {len(rows)} {'problem' if len(rows) == 1 else 'problems'}"
    letters = [] if found is None else [found.names[winner] for winner in found.matrix.winners]
    names = {row.problem.key: letter for row, letter in zip(won, letters, strict=True)}
    data = map_data(rows, names)
    sections = [
        _head(title, rows, found),
        warnings_section(text for result in begun for text in result.warnings),
        _table(rows, names),
        map_sections(data),
        *([] if found is None else [_configurations(found), _regret(found), _rule(found)]),
        _each(rows),
        _environment(begun, folder),
    ]
    return whole_page(title, sections, data, file_text("set_page.js"))


def _found(won: Sequence[TunedProblem]) -> SetFindings:
    matrix = regret_matrix([row.result for row in won if row.result is not None])
    weights = [row.problem.weight for row in won]
    few, why = None, ""
    try:
        few = cover(matrix, weights)
    except UsageError as error:  # what the problems share was measured on too few of them
        why = str(error)
    rule = dispatch_rule(matrix, weights)
    order = [row for row, _ in Counter(matrix.winners).most_common()]
    order += [*(few.rows if few is not None else ()), *map(matrix.configs.index, rule.configs)]
    return SetFindings(matrix, few, why, rule, {row: _letters(n) for n, row in enumerate(dict.fromkeys(order))})


def _letters(number: int) -> str:
    """Return the name of a configuration: A to Z, then AA."""
    return chr(65 + number) if number < 26 else f"{_letters(number // 26 - 1)}{_letters(number % 26)}"


def _head(title: str, rows: Sequence[TunedProblem], found: SetFindings | None) -> str:
    won = [row for row in rows if row.won]
    figures = []
    for name, than in (("default_ratio", "the default configurations"), ("reference_ratio", "the references")):
        known = [(row.problem.weight, ratio) for row in won if (ratio := drawable(getattr(row.result, name)))]
        if known:
            mean = math.exp(sum(w * math.log(ratio) for w, ratio in known) / sum(w for w, _ in known))
            figures.append((f"{mean:.2f}×", f"the speed of {than}, geometric mean of {len(known)}"))
    figures.append((f"{len(won)} of {len(rows)}", "problems have a winner"))
    if found is not None and found.few is not None and len(won) > 1:
        worst = _percent(found.few.worst_regret)
        several = len(found.few.configs) > 1
        text = f"configuration{'s' * several} serve{'s' * (not several)} all problems, {worst} slower at most"
        figures.append((f"{len(found.few.configs)}", text))
    return "\n".join([f"<h1>{unbroken(title)}</h1>", '<section id="winner">', figures_html(figures), "</section>"])


def _percent(share: float) -> str:
    return f"{100 * max(share, 0):.2g}\u00a0%"


def _table(rows: Sequence[TunedProblem], names: dict[str, str]) -> str:
    """Return the table of the problems, each of which names its part of the page."""
    weighted = any(row.problem.weight != 1 for row in rows)
    titles = ["problem", *(["weight"] * weighted), "latency, ms", "× default", "× reference", "winner"]
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    body = "\n".join(_row(i, row, weighted, names) for i, row in enumerate(rows))
    return (
        '<section id="all"><h2>Problems</h2><p class="soft">Ratios above 1: the winner is faster.</p>'
        '<div class="scroll tall" tabindex="0" role="region" aria-label="all problems">'
        f'<table id="problems"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        '<p class="hint">Scroll sideways for more columns.</p></section>'
    )


def _row(index: int, row: TunedProblem, weighted: bool, names: dict[str, str]) -> str:
    result, best = row.result, None if row.result is None else row.result.best
    cells = [f'<td><a href="#problem-{index}">{escape(printable(str(row.problem)))}</a></td>']
    cells += [f'<td class="n">{row.problem.weight:g}</td>'] * weighted
    if result is None or best is None:
        kind = "" if row.unfinished else ' class="bad"'
        return f"<tr{kind}>{''.join(cells)}{'<td class=n>–</td>' * 3}<td>{breakable(why(row))}</td></tr>"
    for value in (result.latency_ms, result.default_ratio, result.reference_ratio):
        shown = ">–" if value is None else f' data-v="{value:.9g}">{value:.3g}'
        cells.append(f'<td class="n"{shown}</td>')
    config = escape(printable(describe_config(best.config))) + " (so far)" * (not result.finished)
    cells.append(f"<td><b>{names[row.problem.key]}</b> {config}</td>")
    copied = {"problem": row.problem.arguments, "config": best.config, "latency_ms": result.latency_ms}
    return f'<tr data-config="{escape(printable(json.dumps(copied, default=str)))}">{"".join(cells)}</tr>'


def _configurations(found: SetFindings) -> str:
    """Return the configurations that win or serve others, by their letters."""
    wins, serves = Counter(found.matrix.winners), Counter(found.few.serves if found.few is not None else ())
    lines = []
    for row, name in found.names.items():
        numbers = (f'<td class="n">{counter[row] or "–"}</td>' for counter in (wins, serves))
        config = unbroken(describe_config(found.matrix.configs[row]))
        lines.append(f'<tr><th scope="row" data-name="{name}">{name}</th>{"".join(numbers)}<td>{config}</td></tr>')
    heads = "<td></td>" + "".join(f'<th scope="col">{name}</th>' for name in ("wins", "serves", "configuration"))
    few = found.few
    if few is None:
        text = f"No few configurations serve all problems: {found.why}."
    else:
        many, exact = len(few.configs), "" if few.exact else "; fewer may do"
        those = f"This one serves{exact}" if many == 1 else f"The {many} that serve are the fewest that do{exact}"
        text = f"{those}: no problem is more than {_percent(few.worst_regret)} slower than with its own winner, "
        text += f"and the mean is {_percent(few.mean_regret)}."
    return (
        f'<section id="configurations"><h2>Configurations</h2><p class="soft">{escape(text)}</p><div class="scroll">'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
        '<p class="hint">Scroll sideways for more.</p></section>'
    )


def _regret(found: SetFindings) -> str:
    """Return what the winner of one problem costs on the others, as a table; empty where all share one."""
    matrix, names = found.matrix, found.names
    columns = [row for row in names if row in set(matrix.winners)][:COLUMNS]
    if len(columns) < 2:
        return ""
    text = "By how many % each problem is slower with the winner of another one than with the best configuration that "
    text += "was measured. Framed: its own winner. Hatched: not measured there."
    if left := len(set(matrix.winners)) - len(columns):
        text += f" {left} more winners are left out."
    heads = "".join(f'<th scope="col">{names[row]}</th>' for row in columns)
    lines = []
    for column, problem in enumerate(matrix.problems):
        cells = (_cell(matrix.regret[row][column], row == matrix.winners[column]) for row in columns)
        lines.append(f'<tr><th scope="row">{escape(printable(describe_config(problem)))}</th>{"".join(cells)}</tr>')
    return (
        f'<section id="regret"><h2>Regret of the winners</h2><p class="soft">{text}</p>'
        '<div class="scroll tall" tabindex="0" role="region" aria-label="regret of the winners"><table><thead><tr>'
        f"<th scope=col>problem</th>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
        '<p class="hint">Scroll sideways for more columns.</p></section>'
    )


def _cell(regret: float | None, own: bool) -> str:
    if regret is None:
        return '<td class="none"></td>'
    kind = ' class="own"' if own else ""
    return f'<td{kind} style="--of: {min(1, math.sqrt(2 * max(regret, 0))):.3f}">{100 * regret:.1f}</td>'


def _rule(found: SetFindings) -> str:
    """Return the rule for other problems, and how well it did on those left out."""
    rule = found.rule
    if len(found.matrix.problems) < 2:
        return ""
    lines = ['<section id="rule"><h2>What another problem gets</h2>', f'<p class="soft">{_tested(rule)}</p>']
    if isinstance(rule, TreeRule):
        for tree in rule.trees:
            lines += [f"<h3>{breakable(describe_config(tree.others))}</h3>"] if tree.others else []
            lines.append(f"<ul>{_branches(tree.root, found)}</ul>")
    else:
        sizes, equal = ", ".join(rule.sizes), ", ".join(rule.groups[0].others)
        same = f" with the same {equal}" if equal else ""
        text = f"The configuration of the nearest problem{same}, by the sum of the log2 ratios of {sizes}."
        lines.append(f"<p>{escape(printable(text))}</p>")
    return "\n".join([*lines, "</section>"])


def _tested(rule: AnyRule) -> str:
    """Return what became of problems that were left out of the fit."""
    if rule.regret is None or rule.worst_regret is None:
        return "No problem could be left out to test this rule."
    problems = "problem" if rule.tested == 1 else "problems"
    text = f"{rule.tested} {problems} left out in turn were {_percent(rule.regret)} slower on average than with the "
    text += f"best configuration, {_percent(rule.worst_regret)} at most."
    if rule.unmeasured:
        text += f" For {rule.unmeasured} more, the rule chose what was not measured there."
    return text


def _branches(node: Branch | Leaf, found: SetFindings) -> str:
    """Return a tree as the items of nested lists. Between whole sizes its limits are whole, too."""
    if isinstance(node, Leaf):
        return f"<li>{_leaf(node, found)}</li>"
    whole = all(isinstance(problem[node.size], int) for problem in found.matrix.problems)
    limit = f"{math.floor(node.most)}" if whole else f"{node.most:.4g}"
    lines = []
    for sign, inner in (("≤", node.small), (">", node.large)):
        below = f": {_leaf(inner, found)}" if isinstance(inner, Leaf) else f"<ul>{_branches(inner, found)}</ul>"
        lines.append(f"<li>{escape(printable(node.size))} {sign} {limit}{below}</li>")
    return "".join(lines)


def _leaf(leaf: Leaf, found: SetFindings) -> str:
    return f"<b>{found.names[found.matrix.configs.index(found.rule.configs[leaf.config])]}</b>"


def _each(rows: Sequence[TunedProblem]) -> str:
    """Return what there is to say of each problem, folded."""
    lines = ['<section id="each"><h2>Each problem</h2>']
    for index, row in enumerate(rows):
        lines.append(f'<details id="problem-{index}"><summary>{breakable(str(row.problem))}</summary>')
        lines += _details(row)
        lines.append("</details>")
    return "\n".join([*lines, "</section>"])


def _details(row: TunedProblem) -> Iterator[str]:
    result = row.result
    if result is None or result.best is None:
        yield f'<p class="bad">{breakable(why(row))}.</p>'
    else:
        yield figures_html(winner_figures(result))
        yield f"<p><code>{unbroken(describe_config(result.best.config)) or 'the defaults of the kernel'}</code></p>"
        yield from (f"<p>{breakable(note)}</p>" for note in winner_notes(result))
    if result is not None:
        yield f"<p>{counts_html(result)}</p>"
        if result.journal is not None:
            yield f'<p class="soft"><code>{unbroken(shlex.join(["atune", "report", result.journal]))}</code></p>'


def _environment(begun: Sequence[Result], folder: Path) -> str:
    """Return where and with what the set was run: what holds for all its problems."""
    first, *others = [environment(result) for result in begun] or [[]]
    shared = [row for row in first if row[0] != "journal" and all(row in other for other in others)]
    return environment_section([("journals", str(folder)), *shared])
