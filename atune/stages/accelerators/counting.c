/* Counts threads without a solver, where they are a range.
 *
 * tilelang asks how many threads reach a barrier: its CountSatisfyingValues has z3 find a value of the thread's index,
 * forbids that value, and asks again, once for each thread. This library is loaded before tilelang's, and its functions
 * are called in place of those of the same name. While values are counted it lets z3 find the first one, and answers for
 * it from then on, if every constraint in the solver compares a variable with a number: then the values are a range, and
 * z3 finds all of it. With anything else z3 may run into the limit that tilelang sets it, and tilelang then counts too
 * few: that is z3's to decide. Outside of CountSatisfyingValues every call is passed on, to witness.c first.
 *
 * z3 remembers what it went through. So where it is at a loss, or counts by itself, after it was spared something in
 * the same context, the lowering is in doubt: atune_counting_doubtful tells, and the caller lowers again without this.
 */
#define _GNU_SOURCE
#include "witness.h"

/* z3 finds all of a range within tilelang's limit up to here: it was seen to with 1152 values and 30 variables, and to
 * give up after 1654 of 2048. */
#define MAX_VALUES 1152
#define MAX_COMPARISONS 60
#define MAX_DEPTH 64
#define COUNT_VALUES _ZN3tvm5arith8Z3Prover21CountSatisfyingValuesERKNS_4tirx3VarEll
#define NAME_(name) #name
#define NAME(name) NAME_(name)

/* z3's own functions, and those of witness.c that stand before them. */
#define FUNCTIONS(F)                                                                                                   \
  F(Z3_ast_vector_dec_ref)                                                                                             \
  F(Z3_ast_vector_get)                                                                                                 \
  F(Z3_ast_vector_inc_ref)                                                                                             \
  F(Z3_ast_vector_size)                                                                                                \
  F(Z3_dec_ref)                                                                                                        \
  F(Z3_del_context)                                                                                                    \
  F(Z3_get_app_arg)                                                                                                    \
  F(Z3_get_app_decl)                                                                                                   \
  F(Z3_get_app_num_args)                                                                                               \
  F(Z3_get_ast_kind)                                                                                                   \
  F(Z3_get_decl_kind)                                                                                                  \
  F(Z3_get_error_code)                                                                                                 \
  F(Z3_get_numeral_int64)                                                                                              \
  F(Z3_get_sort)                                                                                                       \
  F(Z3_get_sort_kind)                                                                                                  \
  F(Z3_inc_ref)                                                                                                        \
  F(Z3_mk_distinct)                                                                                                    \
  F(Z3_mk_int64)                                                                                                       \
  F(Z3_model_dec_ref)                                                                                                  \
  F(Z3_model_eval)                                                                                                     \
  F(Z3_model_inc_ref)                                                                                                  \
  F(Z3_solver_assert)                                                                                                  \
  F(Z3_solver_check)                                                                                                   \
  F(Z3_solver_check_assumptions)                                                                                       \
  F(Z3_solver_get_assertions)                                                                                          \
  F(Z3_solver_get_model)                                                                                               \
  F(Z3_to_app)

static struct {
  FUNCTIONS(MEMBER)
  int64_t (*count)(void *, const void *, int64_t, int64_t);
} real;

/* Finds z3's functions in the library at `z3`. The others here must not be called, nor be found, before. */
int atune_counting_begin(const char *z3) {
  void *library = dlopen(z3, RTLD_LAZY | RTLD_LOCAL);
  if (!library)
    return 0;
  FUNCTIONS(FIND)
  if (!witness_begin(library))
    return 0;
  real.Z3_del_context = witness_del_context;
  real.Z3_solver_assert = witness_assert;
  real.Z3_solver_check = witness_check;
  real.Z3_solver_check_assumptions = witness_check_assumptions;
  real.Z3_solver_get_assertions = witness_get_assertions;
  real.Z3_solver_get_model = witness_get_model;
  return 1;
}

/* Constraints. */

typedef struct {
  Z3_context c;
  Z3_ast variable;
  Z3_ast forbidden; /* the constraint that forbids the value that z3 found */
  int64_t low, high;
  int comparisons;
} Range;

static Z3_decl_kind kind_of(Z3_context c, Z3_ast term) {
  return real.Z3_get_decl_kind(c, real.Z3_get_app_decl(c, real.Z3_to_app(c, term)));
}

static unsigned operands_of(Z3_context c, Z3_ast term) {
  return real.Z3_get_app_num_args(c, real.Z3_to_app(c, term));
}

static Z3_ast operand(Z3_context c, Z3_ast term, unsigned i) {
  return real.Z3_get_app_arg(c, real.Z3_to_app(c, term), i);
}

static bool is_integer(Z3_context c, Z3_ast term) {
  return real.Z3_get_sort_kind(c, real.Z3_get_sort(c, term)) == Z3_INT_SORT;
}

static bool is_variable(Z3_context c, Z3_ast term) {
  return real.Z3_get_ast_kind(c, term) == Z3_APP_AST && kind_of(c, term) == Z3_OP_UNINTERPRETED &&
         operands_of(c, term) == 0 && is_integer(c, term);
}

static bool is_number(Z3_context c, Z3_ast term, int64_t *value) {
  return real.Z3_get_ast_kind(c, term) == Z3_NUMERAL_AST && is_integer(c, term) &&
         real.Z3_get_numeral_int64(c, term, value) && *value > -((int64_t)1 << 40) && *value < (int64_t)1 << 40;
}

/* Narrows the range by `variable OPERATION number`; false where it is none of the four. */
static bool narrow(Range *range, bool counts, Z3_decl_kind operation, int64_t number) {
  int64_t low = INT64_MIN, high = INT64_MAX;
  switch (operation) {
  case Z3_OP_LE:
    high = number;
    break;
  case Z3_OP_LT:
    high = number - 1;
    break;
  case Z3_OP_GE:
    low = number;
    break;
  case Z3_OP_GT:
    low = number + 1;
    break;
  default:
    return false;
  }
  range->comparisons++;
  if (counts) { /* else it is another variable's */
    range->low = low > range->low ? low : range->low;
    range->high = high < range->high ? high : range->high;
  }
  return true;
}

static Z3_decl_kind turned(Z3_decl_kind operation) { /* 3 <= x is x >= 3 */
  return operation == Z3_OP_LE   ? Z3_OP_GE
         : operation == Z3_OP_LT ? Z3_OP_GT
         : operation == Z3_OP_GE ? Z3_OP_LE
         : operation == Z3_OP_GT ? Z3_OP_LT
                                 : operation;
}

static Z3_decl_kind opposite(Z3_decl_kind operation) {
  return operation == Z3_OP_LE   ? Z3_OP_GT
         : operation == Z3_OP_LT ? Z3_OP_GE
         : operation == Z3_OP_GE ? Z3_OP_LT
         : operation == Z3_OP_GT ? Z3_OP_LE
                                 : operation;
}

/* Narrows the range by a constraint; false where that is more than comparisons of a variable with a number. */
static bool constrain(Range *range, Z3_ast term, bool negated, int depth) {
  Z3_context c = range->c;
  if (term == range->forbidden && !negated)
    return true;
  if (depth == MAX_DEPTH || real.Z3_get_ast_kind(c, term) != Z3_APP_AST)
    return false;
  Z3_decl_kind operation = kind_of(c, term);
  unsigned n = operands_of(c, term);
  if (operation == Z3_OP_TRUE)
    return !negated;
  if (operation == Z3_OP_NOT && n == 1)
    return constrain(range, operand(c, term, 0), !negated, depth + 1);
  if (operation == Z3_OP_AND && !negated) {
    for (unsigned i = 0; i < n; i++)
      if (!constrain(range, operand(c, term, i), false, depth + 1))
        return false;
    return true;
  }
  if (n != 2)
    return false;
  Z3_ast left = operand(c, term, 0), right = operand(c, term, 1);
  int64_t number;
  if (negated)
    operation = opposite(operation);
  if (is_variable(c, left) && is_number(c, right, &number))
    return narrow(range, left == range->variable, operation, number);
  if (is_variable(c, right) && is_number(c, left, &number))
    return narrow(range, right == range->variable, turned(operation), number);
  return false;
}

/* Tells the least and the largest value that `variable` can take beside the solver's constraints but `forbidden`, of
 * which all together have a solution; false where that is for z3 to find out, as it is where they are too many.
 */
bool atune_range(Z3_context c, Z3_solver s, Z3_ast variable, Z3_ast forbidden, int64_t *low, int64_t *high) {
  if (!is_variable(c, variable))
    return false;
  Range range = {c, variable, forbidden, INT64_MIN, INT64_MAX, 0};
  Z3_ast_vector terms = real.Z3_solver_get_assertions(c, s);
  real.Z3_ast_vector_inc_ref(c, terms);
  unsigned size = real.Z3_ast_vector_size(c, terms);
  bool simple = true;
  for (unsigned i = 0; i < size && simple; i++)
    simple = constrain(&range, real.Z3_ast_vector_get(c, terms, i), false, 0);
  real.Z3_ast_vector_dec_ref(c, terms);
  if (!simple || range.comparisons > MAX_COMPARISONS || range.low == INT64_MIN || range.high == INT64_MAX ||
      range.low > range.high || range.high - range.low >= MAX_VALUES)
    return false;
  *low = range.low;
  *high = range.high;
  return true;
}

/* Answering for z3. */

static __thread struct {
  enum { IDLE, FIRST, FOUND, KNOWN, ANSWERING } state;
  int64_t wanted;
  Z3_context c;
  Z3_solver s;
  Z3_model model;
  Z3_ast variable;
  int64_t first, low, high;
  int64_t n, next; /* values beside the first, and how many of them z3 was asked for */
} now;
static __thread Z3_context spared; /* the last context in which z3 did not count by itself */
static __thread bool off, doubtful;
static __thread long answered;

/* How many times this thread answered for z3 so far. */
long atune_counting_answered(void) { return answered; }

/* Tells whether z3, spared before, was at a loss or counted by itself since this was asked last, in this thread: 1 where
 * it was spared a count, 2 where a witness was found in its place. */
int atune_counting_doubtful(void) {
  int was = doubtful | witness_doubtful << 1;
  doubtful = witness_doubtful = false;
  spared = NULL;
  return was;
}

/* Whether z3 counts, and whether it is asked, everything, in this thread. */
void atune_counting_off(int counting, int witness) {
  off = counting;
  witness_off = witness;
}

static void end(void) {
  if (now.model)
    real.Z3_model_dec_ref(now.c, now.model);
  now.model = NULL;
  now.state = IDLE;
}

static void end_of_count(int *unused) {
  (void)unused;
  end();
}

int64_t COUNT_VALUES(void *prover, const void *variable, int64_t wanted, int64_t in_a_row) {
  __attribute__((cleanup(end_of_count))) int at_an_exception_too = 0;
  (void)at_an_exception_too;
  if (!real.count) {
    void *library = dlopen("libtvm_compiler.so", RTLD_NOLOAD | RTLD_LAZY);
    void *function = library ? dlsym(library, NAME(COUNT_VALUES)) : NULL;
    if (!function)
      abort();
    real.count = (__typeof__(real.count))function;
  }
  end();
  now.state = off || wanted <= 1 ? IDLE : FIRST;
  now.wanted = wanted;
  return real.count(prover, variable, wanted, in_a_row);
}

static Z3_lbool noted(Z3_context c, Z3_lbool answer) {
  doubtful |= answer == Z3_L_UNDEF && c == spared;
  return answer;
}

Z3_lbool Z3_solver_check(Z3_context c, Z3_solver s) {
  if (now.state == ANSWERING && s == now.s) {
    answered++;
    if (now.next < now.n)
      return Z3_L_TRUE;
    end();
    return Z3_L_FALSE;
  }
  Z3_lbool answer = noted(c, real.Z3_solver_check(c, s));
  doubtful |= now.state > FIRST && c == spared;
  witness_doubtful |= now.state > FIRST && witness_has(c, s);
  if (now.state == FIRST && answer == Z3_L_TRUE) {
    now.state = FOUND;
    now.c = c;
    now.s = s;
  } else {
    end();
  }
  return answer;
}

Z3_lbool Z3_solver_check_assumptions(Z3_context c, Z3_solver s, unsigned n, Z3_ast const *assumptions) {
  return noted(c, real.Z3_solver_check_assumptions(c, s, n, assumptions));
}

void Z3_del_context(Z3_context c) {
  if (c == spared) /* the next one may have its address */
    spared = NULL;
  real.Z3_del_context(c);
}

Z3_model Z3_solver_get_model(Z3_context c, Z3_solver s) {
  if (now.state == ANSWERING && s == now.s)
    return now.model;
  Z3_model model = real.Z3_solver_get_model(c, s);
  if (now.state == FOUND && s == now.s && !now.model && model) {
    real.Z3_model_inc_ref(c, model);
    now.model = model;
  }
  return model;
}

/* The range's values in turn, without the first one that z3 found. */
static int64_t value_at(int64_t i) { return now.low + i + (now.low + i >= now.first); }

bool Z3_model_eval(Z3_context c, Z3_model model, Z3_ast term, bool complete, Z3_ast *value) {
  if (now.state == ANSWERING && model == now.model && term == now.variable) {
    *value = real.Z3_mk_int64(c, value_at(now.next), real.Z3_get_sort(c, term));
    return true;
  }
  bool known = real.Z3_model_eval(c, model, term, complete, value);
  if (now.state == FOUND && model == now.model && known && is_number(c, *value, &now.first)) {
    now.variable = term;
    now.state = KNOWN;
  }
  return known;
}

/* Tells whether `term` forbids the variable this one value. */
static bool forbids(Z3_context c, Z3_ast term, int64_t value) {
  int64_t forbidden;
  return real.Z3_get_ast_kind(c, term) == Z3_APP_AST && kind_of(c, term) == Z3_OP_DISTINCT &&
         operands_of(c, term) == 2 && operand(c, term, 0) == now.variable &&
         is_number(c, operand(c, term, 1), &forbidden) && forbidden == value;
}

/* Tells z3 what it was spared so far, and leaves the rest to it. */
static void hand_over(Z3_context c, Z3_solver s) {
  for (int64_t i = 0; i < now.next; i++) {
    Z3_ast pair[2] = {now.variable, real.Z3_mk_int64(c, value_at(i), real.Z3_get_sort(c, now.variable))};
    real.Z3_inc_ref(c, pair[1]);
    real.Z3_solver_assert(c, s, real.Z3_mk_distinct(c, 2, pair));
    real.Z3_dec_ref(c, pair[1]);
  }
  doubtful = true;
  end();
}

void Z3_solver_assert(Z3_context c, Z3_solver s, Z3_ast term) {
  if (now.state == ANSWERING && s == now.s) {
    if (forbids(c, term, value_at(now.next))) {
      now.next++;
      return;
    }
    hand_over(c, s);
  }
  real.Z3_solver_assert(c, s, term);
  if (now.state != KNOWN || s != now.s || real.Z3_get_error_code(c) != Z3_OK)
    return;
  if (forbids(c, term, now.first) && atune_range(c, s, now.variable, term, &now.low, &now.high) &&
      now.low <= now.first && now.first <= now.high && now.high - now.low < now.wanted) {
    now.n = now.high - now.low;
    now.next = 0;
    now.state = ANSWERING;
    spared = c;
  } else { /* which values are found first, and how far z3 comes, may matter */
    doubtful |= c == spared;
    witness_doubtful |= witness_has(c, s);
    end();
  }
}
