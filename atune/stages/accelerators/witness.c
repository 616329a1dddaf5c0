/* Finds counterexamples without z3: points at which all that a solver was told, and what is asked, hold.
 *
 * tilelang has z3 prove what its own rules do not, by asking whether the opposite is possible. It nearly always is, and
 * nearly always at the bounds of the variables: so the terms are evaluated there, and at a few points between. Where
 * all hold at one, the answer is z3's, which is never wrong about that. Where none is found, z3 is asked. What a solver
 * is told is kept back until then, so that most of them never have work to do.
 *
 * z3 remembers what it went through, and in which order, and tilelang sets it a limit. So where it is at a loss, or not
 * far from the limit with a proof, the lowering is in doubt, as it is where counting.c says so.
 *
 * Evaluated are terms of integers and truth values: sums, products, quotients, comparisons, cases. A solver that is told
 * others asks z3 while they last.
 */
#define _GNU_SOURCE
#include "witness.h"
#include <pthread.h>
#include <string.h>

#define MAX_NODES 2000 /* in one term */
#define MAX_VARIABLES 256
#define POINTS 24
#define FREE_SPAN 65536 /* how far from its bound, or from zero, a variable is looked for that has no other bound */
#define MAX_BOUND ((int64_t)1 << 40)
#define NEAR_LIMIT 2000 /* z3's steps for a proof, of the 10000 that tilelang lets it take */

#define FUNCTIONS(F)                                                                                                   \
  F(Z3_dec_ref)                                                                                                        \
  F(Z3_del_context)                                                                                                    \
  F(Z3_get_app_arg)                                                                                                    \
  F(Z3_get_app_decl)                                                                                                   \
  F(Z3_get_app_num_args)                                                                                               \
  F(Z3_get_ast_kind)                                                                                                   \
  F(Z3_get_decl_kind)                                                                                                  \
  F(Z3_get_numeral_int64)                                                                                              \
  F(Z3_get_sort)                                                                                                       \
  F(Z3_get_sort_kind)                                                                                                  \
  F(Z3_inc_ref)                                                                                                        \
  F(Z3_mk_solver)                                                                                                      \
  F(Z3_solver_assert)                                                                                                  \
  F(Z3_solver_check)                                                                                                   \
  F(Z3_solver_check_assumptions)                                                                                       \
  F(Z3_solver_dec_ref)                                                                                                 \
  F(Z3_solver_get_assertions)                                                                                          \
  F(Z3_solver_get_model)                                                                                               \
  F(Z3_solver_get_statistics)                                                                                          \
  F(Z3_solver_inc_ref)                                                                                                 \
  F(Z3_solver_pop)                                                                                                     \
  F(Z3_solver_push)                                                                                                    \
  F(Z3_set_error)                                                                                                      \
  F(Z3_stats_dec_ref)                                                                                                  \
  F(Z3_stats_get_key)                                                                                                  \
  F(Z3_stats_get_uint_value)                                                                                           \
  F(Z3_stats_inc_ref)                                                                                                  \
  F(Z3_stats_is_uint)                                                                                                  \
  F(Z3_stats_size)                                                                                                     \
  F(Z3_to_app)

static struct {
  FUNCTIONS(MEMBER)
} real;

int witness_begin(void *library) {
  FUNCTIONS(FIND)
  return 1;
}

__thread bool witness_off, witness_doubtful;
static __thread long found;

/* How many times this thread answered for z3 so far. */
long atune_witness_found(void) { return found; }

/* Terms, in a form that is evaluated fast. */

typedef struct {
  Z3_decl_kind operation; /* Z3_OP_ANUM: a number, Z3_OP_UNINTERPRETED: a variable */
  int first, count;       /* its operands, in `operands` */
  int64_t value;          /* the number, or the variable's place */
} Node;

typedef struct {
  Node *nodes; /* operands before what they are in; the last one is the term */
  int *operands;
  int size;
} Term; /* without nodes: not understood */

typedef struct {
  int variable;
  int64_t low, high;
} Bound;

typedef struct {
  Z3_ast ast; /* NULL: a push */
  Term term;
  Bound *bounds;
  int n_bounds;
} Entry;

typedef struct Solver {
  struct Solver *next;
  Z3_context c;
  Z3_solver s;
  int references;
  Entry *entries;
  int size, capacity, told; /* how many of the entries z3 was told */
  Z3_ast *asked; /* what was found possible last, where z3 was not asked */
  unsigned n_asked;
  Z3_ast variables[MAX_VARIABLES];
  int n_variables;
  int64_t last[MAX_VARIABLES]; /* the point that was found last */
} Solver;

static __thread struct {
  Z3_ast key;
  int node;
  unsigned generation; /* else it is another term's */
} seen[2 * MAX_NODES + 1];
static __thread Node nodes[MAX_NODES];
static __thread int operands[4 * MAX_NODES], n_nodes, n_operands;
static __thread unsigned generation;

static int slot_of(Z3_ast term) {
  unsigned i = (unsigned)(((uintptr_t)term >> 3) * 2654435761u) % (2 * MAX_NODES + 1);
  while (seen[i].generation == generation && seen[i].key != term)
    i = (i + 1) % (2 * MAX_NODES + 1);
  return (int)i;
}

/* A variable's place. Its term lives as long as another that has it, so no two that are in use are mistaken. */
static int variable_of(Solver *solver, Z3_ast term) {
  int free = -1;
  for (int i = 0; i < solver->n_variables; i++)
    if (solver->variables[i] == term)
      return i;
    else if (!solver->variables[i])
      free = i;
  if (free < 0 && solver->n_variables == MAX_VARIABLES)
    return -1;
  if (free < 0)
    free = solver->n_variables++;
  solver->last[free] = 0;
  solver->variables[free] = term;
  return free;
}

/* Makes room where places are short: takes back those of variables that no entry has. */
static void sweep(Solver *solver) {
  bool used[MAX_VARIABLES] = {false};
  if (solver->n_variables < MAX_VARIABLES - 64)
    return;
  for (int i = 0; i < solver->size; i++) {
    const Term *term = &solver->entries[i].term;
    for (int k = 0; term->nodes && k < term->size; k++)
      if (term->nodes[k].operation == Z3_OP_UNINTERPRETED)
        used[term->nodes[k].value] = true;
  }
  for (int v = 0; v < solver->n_variables; v++)
    if (!used[v])
      solver->variables[v] = NULL;
}

static bool is_known(Z3_decl_kind operation, unsigned n) {
  switch (operation) {
  case Z3_OP_TRUE:
  case Z3_OP_FALSE:
    return n == 0;
  case Z3_OP_NOT:
  case Z3_OP_UMINUS:
    return n == 1;
  case Z3_OP_EQ:
  case Z3_OP_IDIV:
  case Z3_OP_MOD:
  case Z3_OP_LE:
  case Z3_OP_LT:
  case Z3_OP_GE:
  case Z3_OP_GT:
  case Z3_OP_IMPLIES:
    return n == 2;
  case Z3_OP_ITE:
    return n == 3;
  case Z3_OP_AND:
  case Z3_OP_OR:
  case Z3_OP_ADD:
  case Z3_OP_SUB:
  case Z3_OP_MUL:
  case Z3_OP_DISTINCT:
    return n >= 1;
  default:
    return false;
  }
}

/* Adds a term's nodes; returns the place of its own, or -1 where it is not understood. */
static int add(Solver *solver, Z3_ast term, int depth) {
  Z3_context c = solver->c;
  int slot = slot_of(term), parts[64];
  if (seen[slot].generation == generation)
    return seen[slot].node;
  Z3_ast_kind kind = real.Z3_get_ast_kind(c, term);
  Node node = {Z3_OP_ANUM, 0, 0, 0};
  if (depth > 200 || (kind != Z3_APP_AST && kind != Z3_NUMERAL_AST))
    return -1;
  if (kind == Z3_NUMERAL_AST) {
    if (real.Z3_get_sort_kind(c, real.Z3_get_sort(c, term)) != Z3_INT_SORT ||
        !real.Z3_get_numeral_int64(c, term, &node.value))
      return -1;
  } else {
    Z3_app app = real.Z3_to_app(c, term);
    unsigned n = real.Z3_get_app_num_args(c, app);
    node.operation = real.Z3_get_decl_kind(c, real.Z3_get_app_decl(c, app));
    if (node.operation == Z3_OP_UNINTERPRETED && n == 0) {
      Z3_sort_kind sort = real.Z3_get_sort_kind(c, real.Z3_get_sort(c, term));
      node.value = variable_of(solver, term);
      if ((sort != Z3_INT_SORT && sort != Z3_BOOL_SORT) || node.value < 0)
        return -1;
      node.count = sort == Z3_BOOL_SORT; /* no operand: there are two values */
    } else {
      if (!is_known(node.operation, n) || n > 64)
        return -1;
      for (unsigned i = 0; i < n; i++)
        if ((parts[i] = add(solver, real.Z3_get_app_arg(c, app, i), depth + 1)) < 0)
          return -1;
      node.first = n_operands;
      node.count = (int)n;
      if (n_operands + (int)n > 4 * MAX_NODES)
        return -1;
      memcpy(operands + n_operands, parts, n * sizeof *parts);
      n_operands += (int)n;
    }
  }
  if (n_nodes == MAX_NODES)
    return -1;
  slot = slot_of(term); /* others came in between */
  seen[slot].generation = generation;
  seen[slot].key = term;
  seen[slot].node = n_nodes;
  nodes[n_nodes] = node;
  return n_nodes++;
}

static void *copy(const void *from, size_t size) {
  void *to = malloc(size ? size : 1);
  return to ? memcpy(to, from, size) : NULL;
}

static Term understood(Solver *solver, Z3_ast ast) {
  Term term = {NULL, NULL, 0};
  n_nodes = n_operands = 0;
  generation++;
  if (add(solver, ast, 0) < 0)
    return term;
  term.nodes = copy(nodes, n_nodes * sizeof *nodes);
  term.operands = copy(operands, n_operands * sizeof *operands);
  term.size = n_nodes;
  if (!term.nodes || !term.operands)
    term.nodes = NULL;
  return term;
}

static void free_term(Term *term) {
  free(term->nodes);
  free(term->operands);
}

/* Evaluates a term; tells whether it is true. Where it has no value, since it divides by zero or is beyond 64 bits, it is
 * not. */
static bool holds(const Term *term, const int64_t *point) {
  static __thread int64_t values[MAX_NODES];
  static __thread bool valid[MAX_NODES];
  for (int i = 0; i < term->size; i++) {
    const Node *node = term->nodes + i;
    const int *of = term->operands + node->first;
    int64_t value = 0, other;
    bool good = true;
    if (node->operation == Z3_OP_ANUM) {
      value = node->value;
    } else if (node->operation == Z3_OP_UNINTERPRETED) {
      value = node->count ? point[node->value] & 1 : point[node->value];
    } else if (node->operation == Z3_OP_ITE) {
      int chosen = of[values[of[0]] ? 1 : 2];
      good = valid[of[0]] && valid[chosen];
      value = values[chosen];
    } else {
      for (int k = 0; k < node->count; k++)
        good &= valid[of[k]];
      if (good && node->count)
        value = values[of[0]];
      switch (good ? node->operation : Z3_OP_TRUE) {
      case Z3_OP_TRUE:
        value = 1;
        break;
      case Z3_OP_FALSE:
        value = 0;
        break;
      case Z3_OP_NOT:
        value = !value;
        break;
      case Z3_OP_UMINUS:
        good = !__builtin_sub_overflow((int64_t)0, value, &value);
        break;
      case Z3_OP_EQ:
        value = value == values[of[1]];
        break;
      case Z3_OP_LE:
        value = value <= values[of[1]];
        break;
      case Z3_OP_LT:
        value = value < values[of[1]];
        break;
      case Z3_OP_GE:
        value = value >= values[of[1]];
        break;
      case Z3_OP_GT:
        value = value > values[of[1]];
        break;
      case Z3_OP_IMPLIES:
        value = !value || values[of[1]];
        break;
      case Z3_OP_IDIV:
      case Z3_OP_MOD: /* what is left over is never negative: SMT-LIB, theory of integers */
        other = values[of[1]];
        if (other == 0 || other == -1 || other == INT64_MIN) {
          good = false;
          break;
        }
        int64_t left = value % other;
        if (left < 0)
          left += other < 0 ? -other : other;
        good = node->operation == Z3_OP_MOD || !__builtin_sub_overflow(value, left, &value);
        value = node->operation == Z3_OP_MOD ? left : value / other;
        break;
      case Z3_OP_DISTINCT:
        value = 1;
        for (int k = 0; k < node->count; k++)
          for (int m = k + 1; m < node->count; m++)
            value &= values[of[k]] != values[of[m]];
        break;
      default:
        for (int k = 1; k < node->count && good; k++) {
          other = values[of[k]];
          switch (node->operation) {
          case Z3_OP_AND:
            value = value && other;
            break;
          case Z3_OP_OR:
            value = value || other;
            break;
          case Z3_OP_ADD:
            good = !__builtin_add_overflow(value, other, &value);
            break;
          case Z3_OP_SUB:
            good = !__builtin_sub_overflow(value, other, &value);
            break;
          case Z3_OP_MUL:
            good = !__builtin_mul_overflow(value, other, &value);
            break;
          default:
            good = false;
          }
        }
      }
    }
    values[i] = value;
    valid[i] = good;
  }
  return valid[term->size - 1] && values[term->size - 1];
}

/* Notes what a term says of single variables: comparisons with a number, and that they are true; several joined by "and".
 */
static void note_bounds(const Term *term, int at, Bound *bounds, int *n, int room) {
  const Node *node = term->nodes + at;
  const int *of = term->operands + node->first;
  if (node->operation == Z3_OP_AND)
    for (int i = 0; i < node->count; i++)
      note_bounds(term, of[i], bounds, n, room);
  if (*n == room)
    return;
  if (node->operation == Z3_OP_UNINTERPRETED) {
    bounds[(*n)++] = (Bound){(int)node->value, 1, 1};
    return;
  }
  bool equal = node->operation == Z3_OP_EQ, strict = node->operation == Z3_OP_LT || node->operation == Z3_OP_GT;
  bool less = node->operation == Z3_OP_LE || node->operation == Z3_OP_LT;
  if (!equal && !less && node->operation != Z3_OP_GE && node->operation != Z3_OP_GT)
    return;
  const Node *left = term->nodes + of[0], *right = term->nodes + of[1];
  if (left->operation != Z3_OP_UNINTERPRETED) { /* 3 <= x is x >= 3 */
    const Node *swapped = left;
    left = right;
    right = swapped;
    less = !less;
  }
  int64_t number = right->value;
  if (left->operation != Z3_OP_UNINTERPRETED || right->operation != Z3_OP_ANUM || number > MAX_BOUND ||
      number < -MAX_BOUND)
    return;
  Bound bound = {(int)left->value, INT64_MIN, INT64_MAX};
  if (equal || less)
    bound.high = number - strict;
  if (equal || !less)
    bound.low = number + strict;
  bounds[(*n)++] = bound;
}

/* Solvers. */

static Solver *solvers;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static Solver *solver_of(Z3_context c, Z3_solver s) {
  pthread_mutex_lock(&mutex);
  Solver *solver = solvers;
  while (solver && (solver->s != s || solver->c != c))
    solver = solver->next;
  pthread_mutex_unlock(&mutex);
  return solver;
}

static void forget_asked(Solver *solver) {
  for (unsigned i = 0; i < solver->n_asked; i++)
    real.Z3_dec_ref(solver->c, solver->asked[i]);
  free(solver->asked);
  solver->asked = NULL;
  solver->n_asked = 0;
}

static void drop(Solver *solver, int size, bool alive) {
  while (solver->size > size) {
    Entry *entry = solver->entries + --solver->size;
    if (entry->ast && alive)
      real.Z3_dec_ref(solver->c, entry->ast);
    free_term(&entry->term);
    free(entry->bounds);
  }
}

/* Takes solvers from the list: one, or all of a context that ends. */
static void forget(Z3_context c, Z3_solver s, bool alive) {
  pthread_mutex_lock(&mutex);
  for (Solver **at = &solvers; *at;) {
    Solver *solver = *at;
    if (solver->c != c || (s && solver->s != s)) {
      at = &solver->next;
      continue;
    }
    *at = solver->next;
    if (alive)
      forget_asked(solver);
    else
      free(solver->asked);
    drop(solver, 0, alive);
    free(solver->entries);
    free(solver);
  }
  pthread_mutex_unlock(&mutex);
}

static bool append(Solver *solver, Entry entry) {
  if (solver->size == solver->capacity) {
    int capacity = solver->capacity ? 2 * solver->capacity : 64;
    Entry *larger = realloc(solver->entries, capacity * sizeof *larger);
    if (!larger)
      return false;
    solver->entries = larger;
    solver->capacity = capacity;
  }
  solver->entries[solver->size++] = entry;
  return true;
}

/* Tells z3 what it was not told yet. */
static void tell(Solver *solver) {
  forget_asked(solver);
  for (; solver->told < solver->size; solver->told++) {
    Entry *entry = solver->entries + solver->told;
    if (entry->ast)
      real.Z3_solver_assert(solver->c, solver->s, entry->ast);
    else
      real.Z3_solver_push(solver->c, solver->s);
  }
}

typedef struct {
  int64_t low, high;
  bool free; /* no bound below but its type's */
} Range;

/* The ranges that single comparisons leave to variables. */
static void ranges_of(const Solver *solver, Range *ranges) {
  for (int v = 0; v < solver->n_variables; v++)
    ranges[v] = (Range){INT64_MIN, INT64_MAX, false};
  for (int i = 0; i < solver->size; i++)
    for (int k = 0; k < solver->entries[i].n_bounds; k++) {
      const Bound *bound = solver->entries[i].bounds + k;
      Range *range = ranges + bound->variable;
      if (bound->low > range->low)
        range->low = bound->low;
      if (bound->high < range->high)
        range->high = bound->high;
    }
  for (int v = 0; v < solver->n_variables; v++) {
    Range *range = ranges + v;
    bool above = range->high >= INT32_MAX;
    range->free = range->low <= INT32_MIN;
    if (range->free)
      range->low = above || range->high > 0 ? 0 : range->high - FREE_SPAN;
    if (above)
      range->high = range->low + FREE_SPAN;
    if (range->high < range->low) /* nothing holds there */
      range->high = range->low;
  }
}

/* The place of a variable at one of the points: a corner, the last witness, or by chance between or at a corner. */
static int64_t place(const Range *range, int64_t last, int round, uint64_t random) {
  int64_t bit = (random >> 40) & 1;
  switch (round < 3 ? round : 3 + round % 4) {
  case 0:
    return range->low;
  case 1:
    return range->high;
  case 2:
    return last;
  case 3:
    return bit ? range->low : range->high;
  case 4:
    return range->low + (range->free ? -bit : bit && range->low < range->high);
  case 5:
    return range->high - (bit && range->low < range->high);
  default:
    return range->low + (int64_t)(random % ((uint64_t)(range->high - range->low) + 1));
  }
}

/* Looks for a point at which everything holds. */
static bool possible(Solver *solver, unsigned n, Z3_ast const *assumptions) {
  int64_t point[MAX_VARIABLES];
  Range ranges[MAX_VARIABLES];
  Term asked[4];
  unsigned ready = 0;
  bool is = false;
  if (n > 4)
    return false;
  for (int i = 0; i < solver->size; i++)
    if (solver->entries[i].ast && !solver->entries[i].term.nodes)
      return false;
  sweep(solver);
  while (ready < n && (asked[ready] = understood(solver, assumptions[ready])).nodes)
    ready++;
  ranges_of(solver, ranges);
  uint64_t random = 88172645463325252u; /* the same points every time; Marsaglia, "Xorshift RNGs" */
  for (int round = 0; round < POINTS && ready == n && !is; round++) {
    for (int v = 0; v < solver->n_variables; v++) {
      random ^= random << 13;
      random ^= random >> 7;
      random ^= random << 17;
      point[v] = place(ranges + v, solver->last[v], round, random);
    }
    is = true;
    for (unsigned i = 0; i < n && is; i++)
      is = holds(asked + i, point);
    for (int i = solver->size - 1; i >= 0 && is; i--)
      is = !solver->entries[i].ast || holds(&solver->entries[i].term, point);
  }
  if (is)
    memcpy(solver->last, point, solver->n_variables * sizeof *point);
  for (unsigned i = 0; i < ready; i++)
    free_term(asked + i);
  return is;
}

/* How many steps z3 took in the solver's context so far. */
static unsigned steps(const Solver *solver) {
  Z3_context c = solver->c;
  unsigned found = UINT32_MAX;
  Z3_stats all = real.Z3_solver_get_statistics(c, solver->s);
  real.Z3_stats_inc_ref(c, all);
  for (unsigned i = 0, n = real.Z3_stats_size(c, all); i < n; i++)
    if (!strcmp(real.Z3_stats_get_key(c, all, i), "rlimit count") && real.Z3_stats_is_uint(c, all, i))
      found = real.Z3_stats_get_uint_value(c, all, i);
  real.Z3_stats_dec_ref(c, all);
  return found;
}

static Z3_lbool ask(Solver *solver, unsigned n, Z3_ast const *assumptions, bool plain) {
  tell(solver);
  unsigned before = witness_off ? 0 : steps(solver);
  Z3_lbool answer = plain ? real.Z3_solver_check(solver->c, solver->s)
                          : real.Z3_solver_check_assumptions(solver->c, solver->s, n, assumptions);
  if (!witness_off && answer != Z3_L_TRUE) {
    unsigned after = answer == Z3_L_UNDEF ? UINT32_MAX : steps(solver);
    witness_doubtful |= after == UINT32_MAX || after - before > NEAR_LIMIT;
  }
  return answer;
}

/* In place of z3's. */

Z3_solver Z3_mk_solver(Z3_context c) {
  Z3_solver s = real.Z3_mk_solver(c);
  Solver *solver = s && !witness_off ? calloc(1, sizeof *solver) : NULL;
  if (solver) {
    solver->c = c;
    solver->s = s;
    pthread_mutex_lock(&mutex);
    solver->next = solvers;
    solvers = solver;
    pthread_mutex_unlock(&mutex);
  }
  return s;
}

void Z3_solver_inc_ref(Z3_context c, Z3_solver s) {
  Solver *solver = solver_of(c, s);
  if (solver)
    solver->references++;
  real.Z3_solver_inc_ref(c, s);
}

void Z3_solver_dec_ref(Z3_context c, Z3_solver s) {
  Solver *solver = solver_of(c, s);
  if (solver && --solver->references <= 0)
    forget(c, s, true);
  real.Z3_solver_dec_ref(c, s);
}

bool witness_has(Z3_context c, Z3_solver s) { return !witness_off && solver_of(c, s); }

void witness_del_context(Z3_context c) {
  forget(c, NULL, false);
  real.Z3_del_context(c);
}

void Z3_solver_push(Z3_context c, Z3_solver s) {
  Solver *solver = solver_of(c, s);
  Entry push = {NULL, {NULL, NULL, 0}, NULL, 0};
  if (!solver) {
    real.Z3_solver_push(c, s);
    return;
  }
  real.Z3_set_error(c, Z3_OK); /* as a call of z3's would */
  forget_asked(solver);
  if (!append(solver, push))
    abort();
}

void Z3_solver_pop(Z3_context c, Z3_solver s, unsigned n) {
  Solver *solver = solver_of(c, s);
  if (!solver) {
    real.Z3_solver_pop(c, s, n);
    return;
  }
  forget_asked(solver);
  unsigned told = 0;
  int size = solver->size;
  for (unsigned i = 0; i < n; i++) {
    do {
      if (size == 0) { /* more than there are: z3 says so */
        tell(solver);
        real.Z3_solver_pop(c, s, n);
        return;
      }
      size--;
    } while (solver->entries[size].ast);
    told += size < solver->told;
  }
  real.Z3_set_error(c, Z3_OK);
  drop(solver, size, true);
  if (solver->told > size)
    solver->told = size;
  if (told)
    real.Z3_solver_pop(c, s, told);
}

void witness_assert(Z3_context c, Z3_solver s, Z3_ast ast) {
  Solver *solver = solver_of(c, s);
  if (!solver) {
    real.Z3_solver_assert(c, s, ast);
    return;
  }
  forget_asked(solver);
  Bound bounds[64];
  Entry entry = {ast, {NULL, NULL, 0}, NULL, 0};
  sweep(solver);
  entry.term = understood(solver, ast);
  if (entry.term.nodes) {
    note_bounds(&entry.term, entry.term.size - 1, bounds, &entry.n_bounds, 64);
    entry.bounds = copy(bounds, entry.n_bounds * sizeof *bounds);
    if (!entry.bounds)
      entry.n_bounds = 0;
  }
  real.Z3_inc_ref(c, ast);
  if (!append(solver, entry))
    abort();
}

Z3_lbool witness_check(Z3_context c, Z3_solver s) {
  Solver *solver = solver_of(c, s);
  return solver ? ask(solver, 0, NULL, true) : real.Z3_solver_check(c, s);
}

Z3_lbool witness_check_assumptions(Z3_context c, Z3_solver s, unsigned n, Z3_ast const *assumptions) {
  Solver *solver = solver_of(c, s);
  if (!solver)
    return real.Z3_solver_check_assumptions(c, s, n, assumptions);
  if (witness_off || !possible(solver, n, assumptions))
    return ask(solver, n, assumptions, false);
  forget_asked(solver);
  solver->asked = copy(assumptions, n * sizeof *assumptions);
  if (!solver->asked)
    abort();
  for (unsigned i = 0; i < n; i++)
    real.Z3_inc_ref(c, assumptions[i]);
  solver->n_asked = n;
  found++;
  return Z3_L_TRUE;
}

/* Tells z3 what it was not told, and has it find by itself what was asked last. */
static void settle(Solver *solver) {
  if (!solver->asked) {
    tell(solver);
    return;
  }
  unsigned n = solver->n_asked;
  Z3_ast *asked = solver->asked;
  solver->asked = NULL;
  solver->n_asked = 0;
  ask(solver, n, asked, false);
  for (unsigned i = 0; i < n; i++)
    real.Z3_dec_ref(solver->c, asked[i]);
  free(asked);
}

Z3_model witness_get_model(Z3_context c, Z3_solver s) {
  Solver *solver = solver_of(c, s);
  if (solver && solver->asked)
    settle(solver);
  return real.Z3_solver_get_model(c, s);
}

Z3_ast_vector witness_get_assertions(Z3_context c, Z3_solver s) {
  Solver *solver = solver_of(c, s);
  if (solver)
    settle(solver);
  return real.Z3_solver_get_assertions(c, s);
}

Z3_ast_vector Z3_solver_get_assertions(Z3_context c, Z3_solver s) { return witness_get_assertions(c, s); }

Z3_stats Z3_solver_get_statistics(Z3_context c, Z3_solver s) {
  Solver *solver = solver_of(c, s);
  if (solver)
    settle(solver);
  return real.Z3_solver_get_statistics(c, s);
}
