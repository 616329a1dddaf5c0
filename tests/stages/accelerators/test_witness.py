"""Counterexamples found without z3: z3's own answers, to solvers that are told and asked in any order."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import z3_layer

z3: Any = pytest.importorskip("z3")
CONTEXT = z3.main_ctx()
ANSWERS = {1: z3.sat, -1: z3.unsat, 0: z3.unknown}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    library = z3_layer.made(tmp_path_factory.mktemp("witness"))
    library.Z3_mk_solver.restype = z3.SolverObj
    library.Z3_solver_get_model.restype = z3.ModelObj
    library.Z3_solver_get_assertions.restype = z3.AstVectorObj
    library.atune_witness_found.restype = ctypes.c_long
    return library


class Solver:
    """A solver of z3's that is told and asked as tilelang's are. `plain`: the same one, past all that stands before."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.pointer = library.Z3_mk_solver(ctypes.c_void_p(CONTEXT.ref().value))
        self._call("solver_inc_ref")
        self.plain = z3.Solver(self.pointer, CONTEXT)

    def _call(self, name: str, *arguments: Any) -> Any:
        context, solver = ctypes.c_void_p(CONTEXT.ref().value), ctypes.c_void_p(self.pointer.value)
        return getattr(self.library, f"Z3_{name}")(context, solver, *arguments)

    def add(self, *terms: Any) -> None:
        for term in terms:
            self._call("solver_assert", ctypes.c_void_p(term.as_ast().value))

    def push(self) -> None:
        self._call("solver_push")

    def pop(self, n: int = 1) -> None:
        self._call("solver_pop", n)

    def check(self, *terms: Any) -> Any:
        if not terms:
            return ANSWERS[self._call("solver_check")]
        array = (ctypes.c_void_p * len(terms))(*(term.as_ast().value for term in terms))
        return ANSWERS[self._call("solver_check_assumptions", len(terms), array)]

    def model(self) -> Any:
        return z3.ModelRef(self._call("solver_get_model"), CONTEXT)

    def assertions(self) -> list[str]:
        return list(map(str, z3.AstVector(self._call("solver_get_assertions"), CONTEXT)))

    def found(self) -> int:
        """How many answers z3 was not asked for, of all solvers."""
        return int(self.library.atune_witness_found())

    def doubtful(self) -> bool:
        doubt = self.library.atune_counting_doubtful()
        assert doubt in (0, 2)
        return doubt == 2


@pytest.fixture
def solver(library: Any) -> Iterator[Solver]:
    solver = Solver(library)
    solver.doubtful()
    yield solver
    solver._call("solver_dec_ref")


x, y, z = z3.Ints("x y z")
p, q = z3.Bools("p q")
RANGE = (x >= 0, x < 96, z3.And(y <= 31, z3.IntVal(0) <= y))


def test_what_is_possible_is_found_without_z3_and_what_is_not_z3_says(solver: Solver) -> None:
    solver.add(*RANGE, p, z3.Not(q))
    before = solver.found()
    possible = [
        x < 32, z3.Not(x < 32), x % 32 != 0, x / 32 == 2, x == y, x != y, z3.Not(z3.Implies(x > 3, y > 3)),
        z3.If(x > 40, x - 40, -x) < 0, x * y > 5, z < 0, z > 1000, z3.And(p, x + y > 100), z3.Or(q, y == 31),
        z3.Distinct(x, y, z), z3.BoolVal(True), -7 / (x + 2) == -4, -7 % (-x - 2) == 1, p != q,
    ]  # fmt: skip
    for n, term in enumerate(possible, 1):
        assert (solver.check(term), solver.found() - before) == (z3.sat, n), term
        assert solver.plain.check(term, *RANGE) == z3.sat
    impossible = [x > 95, x + y > 126, x % 32 < 0, (x / 2) * 2 > x, z3.And(q, x > 3), p == q, z3.BoolVal(False)]
    for term in impossible:
        assert solver.check(term) == z3.unsat, term
    assert solver.found() - before == len(possible) and not solver.doubtful()
    assert solver.check() == z3.sat


def terms(random_: random.Random, depth: int, *, truth: bool) -> Any:
    """Return a term by chance, of integers or truth values."""

    def one(truth: bool = truth) -> Any:
        return terms(random_, depth - 1, truth=truth)

    number = z3.IntVal(random_.choice([-(2**31), -64, -7, -2, -1, 0, 1, 2, 3, 5, 16, 31, 32, 2**31 - 1, 2**62]))
    if depth == 0:
        return random_.choice([p, q, x < number, z3.BoolVal(random_.random() < 0.5)] if truth else [x, y, z, number])
    divisor = random_.choice([-32, -3, -2, 2, 5, 16, 32])
    if not truth:
        makers: list[Callable[[], Any]] = [
            lambda: one() + one(),
            lambda: one() - one(),
            lambda: -one(),
            lambda: one() * number,
            lambda: one() / divisor,
            lambda: one() % divisor,
            lambda: z3.If(one(True), one(), one()),
        ]
    else:
        makers = [
            lambda: one(False) <= one(False),
            lambda: one(False) < one(False),
            lambda: one(False) >= one(False),
            lambda: one(False) > one(False),
            lambda: one(False) == one(False),
            lambda: z3.Distinct(one(False), one(False), one(False)),
            lambda: one() == one(),
            lambda: z3.Not(one()),
            lambda: z3.And(one(), one()),
            lambda: z3.Or(one(), one()),
            lambda: z3.Implies(one(), one()),
        ]
    return random_.choice(makers)()


def test_random_terms_told_and_taken_back_have_z3s_answers(library: Any) -> None:
    random_, answers, found = random.Random(0), list[Any](), 0
    for _ in range(60):
        solver, same = Solver(library), z3.Solver()
        before, depth = solver.found(), 0
        for each in (solver, same):
            each.add(x >= -40, x < 3, y >= 0, z3.Not(y > 100))
        for _ in range(30):
            term = terms(random_, random_.randint(1, 3), truth=True)
            does = random_.choice(["add", "push", "pop", "check", "check", "check", "all", "model", "assertions"])
            if does == "add":
                for each in (solver, same):
                    each.add(term)
            elif does == "push":
                depth += 1
                for each in (solver, same):
                    each.push()
            elif does == "pop" and depth:
                n = random_.randint(1, depth)
                depth -= n
                for each in (solver, same):
                    each.pop(n)
            elif does == "assertions":
                assert solver.assertions() == list(map(str, same.assertions()))
            else:
                asked = [] if does == "all" else [term, terms(random_, 1, truth=True)][: random_.randint(1, 2)]
                expected = same.check(*asked)
                assert solver.check(*asked) == expected, (same, asked)
                answers.append(expected)
                if does == "model" and expected == z3.sat:
                    model = solver.model()
                    told = [*same.assertions(), *asked]
                    assert all(z3.is_true(model.eval(one, model_completion=True)) for one in told), (told, model)
        found += solver.found() - before
        solver._call("solver_dec_ref")
    assert z3.unknown not in answers and answers.count(z3.unsat) > 50
    assert answers.count(z3.sat) > found > 250


@pytest.mark.parametrize(
    "term",
    [
        z3.Real("r") < 0.5,
        z3.ToReal(x) < 2.5,
        z3.Int2BV(x, 8) & 1 == 0,
        z3.BitVec("bits", 8) == 3,
        z3.Function("f", z3.IntSort(), z3.IntSort())(x) >= 0,
        z3.Exists([y], x == 2 * y),
        z3.Array("a", z3.IntSort(), z3.IntSort())[x] == 0,
        z3.Const("c", z3.DeclareSort("S")) == z3.Const("c", z3.DeclareSort("S")),
        z3.String("s") == "a",
        z3.IntVal(2**63) > x,
        z3.Sum([x] * 65) >= 0,
        x**2 >= 0,
    ],
    ids=str,
)
def test_terms_of_other_kinds_are_left_to_z3(solver: Solver, term: Any) -> None:
    solver.add(*RANGE)
    before = solver.found()
    assert solver.check(term) == z3.sat and solver.found() == before
    solver.push()
    solver.add(term)
    assert solver.check(x >= 0) == z3.sat and solver.found() == before
    solver.pop()
    assert solver.check(x >= 0) == z3.sat and solver.found() == before + 1


@pytest.mark.parametrize(
    "term",
    [
        x * 4 < 0, x + x < 0, -x - x > 0, x * x < 0, (x + x) / 2 != x, x / y != x / y, (0 - x - x) % 7 < 0,
        x / -1 > 0, z3.If(y == 0, 1, 7 / y) == 2,
    ],
    ids=str,
)  # fmt: skip
def test_what_has_no_value_in_64_bits_is_no_witness(solver: Solver, term: Any) -> None:
    solver.add(x >= 2**62, x <= 2**62 + 9, y == 0)
    before = solver.found()
    assert solver.check(term) == z3.unsat and solver.check(z3.Not(term)) == z3.sat
    assert solver.found() - before <= 1


def test_many_variables_come_and_go(solver: Solver) -> None:
    solver.add(*RANGE)
    before = solver.found()
    for n in range(40):
        solver.push()
        solver.add(*(z3.Int(f"v{n}_{i}") == i for i in range(20)))
        solver.add(z3.Int(f"v{n}_3") < 2 if n % 2 else x > 2)
        assert solver.check(y >= n % 30) == (z3.unsat if n % 2 else z3.sat)
        solver.pop()
    assert solver.found() - before == 20
    solver.add(*(z3.Int(f"w{i}") >= i for i in range(300)))
    assert solver.check(z3.Int("w299") < 299) == z3.unsat
    assert solver.check(z3.Int("w299") > 299) == z3.sat and solver.found() - before == 20


HARD = x * x * x + y * y * y + z * z * z == 114


def test_where_z3_is_at_a_loss_the_lowering_is_in_doubt(solver: Solver) -> None:
    """Told and asked everything, in order, it may not have been."""
    solver.plain.set("rlimit", 2000)
    assert solver.check(x > 3) == z3.sat and not solver.doubtful()
    assert solver.check(HARD) == z3.unknown
    assert solver.doubtful() and not solver.doubtful()


def test_a_proof_that_takes_many_steps_leaves_it_in_doubt(solver: Solver) -> None:
    """Pigeons, more of them than holes: after all else that z3 was asked, it may not have come to the end of it."""

    def too_many(pigeons: int) -> Any:
        sits = [[z3.Bool(f"{pigeon} in {hole}") for hole in range(pigeons - 1)] for pigeon in range(pigeons)]
        two = [z3.Not(z3.And(a, b)) for hole in zip(*sits, strict=True) for a in hole for b in hole if a is not b]
        return z3.And(*map(z3.Or, sits), *(z3.And(*two[n : n + 50]) for n in range(0, len(two), 50)))

    assert solver.check(x > 3) == z3.sat
    assert solver.check(too_many(3)) == z3.unsat and not solver.doubtful()
    assert solver.check(too_many(8)) == z3.unsat and solver.doubtful()
    assert solver.check(x < x) == z3.unsat and not solver.doubtful()


def test_what_is_kept_back_leaves_no_error_behind(solver: Solver) -> None:
    """z3's C++ interface throws where a call leaves one."""
    plain, context = ctypes.CDLL(str(z3_layer.z3_folder() / "lib" / "libz3.so")), ctypes.c_void_p(CONTEXT.ref().value)
    for call in (solver.push, solver.pop):
        plain.Z3_get_app_arg(context, ctypes.c_void_p(x.as_ast().value), 7)
        assert plain.Z3_get_error_code(context) != 0
        call()
        assert plain.Z3_get_error_code(context) == 0


def test_turned_off_z3_is_asked_everything(solver: Solver) -> None:
    before = solver.found()
    solver.add(*RANGE)
    solver.library.atune_counting_off(1, 1)
    try:
        other = Solver(solver.library)
        other.add(*RANGE)
        for each in (solver, other):
            assert (each.check(x > 3), each.check(x > 96)) == (z3.sat, z3.unsat)
            assert len(each.plain.assertions()) == len(RANGE)  # told at once
        other._call("solver_dec_ref")
    finally:
        solver.library.atune_counting_off(0, 0)
    assert solver.found() == before
