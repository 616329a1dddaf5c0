/* Counts values without a solver, where the constraints on the variable are simple.
 *
 * tilelang asks how many threads reach a barrier: its CountSatisfyingValues has z3 find a value of the thread's index,
 * forbids that value, and asks again, once for each thread. This library is loaded before tilelang's, and its functions
 * are called in place of those of the same name. While values are counted it lets z3 find the first one, evaluates the
 * solver's constraints for all others itself, and then answers for z3. It steps back, and z3 goes on alone, wherever
 * the outcome could depend on the solver: the variable is tied to another one, an operation is unknown here, the range
 * is large, or more values are found than the caller wants. Outside of CountSatisfyingValues every call is passed on.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <z3.h>

#define MAX_VALUES 4096
#define MAX_NODES 512
#define MAX_DEPTH 64
#define COUNT_VALUES _ZN3tvm5arith8Z3Prover21CountSatisfyingValuesERKNS_4tirx3VarEll
#define NAME_(name) #name
#define NAME(name) NAME_(name)


/* z3's own functions, those that this library stands before among them. */
#define FUNCTIONS(F)                                                                                                    \
  F(Z3_ast_vector_dec_ref)                                                                                              \
  F(Z3_ast_vector_get)                                                                                                  \
  F(Z3_ast_vector_inc_ref)                                                                                              \
  F(Z3_ast_vector_size)                                                                                                 \
  F(Z3_dec_ref)                                                                                                         \
  F(Z3_get_app_arg)                                                                                                     \
  F(Z3_get_app_decl)                                                                                                    \
  F(Z3_get_app_num_args)                                                                                                \
  F(Z3_get_ast_kind)                                                                                                    \
  F(Z3_get_decl_kind)                                                                                                   \
  F(Z3_get_numeral_int64)                                                                                               \
  F(Z3_get_sort)                                                                                                        \
  F(Z3_get_sort_kind)                                                                                                   \
  F(Z3_inc_ref)                                                                                                         \
  F(Z3_mk_distinct)                                                                                                    \
  F(Z3_mk_int64)                                                                                                        \
  F(Z3_model_dec_ref)                                                                                                   \
  F(Z3_model_eval)                                                                                                      \
  F(Z3_model_inc_ref)                                                                                                   \
  F(Z3_solver_assert)                                                                                                   \
  F(Z3_solver_check)                                                                                                    \
  F(Z3_solver_get_assertions)                                                                                           \
  F(Z3_solver_get_model)                                                                                                \
  F(Z3_to_app)

static struct {
#define MEMBER(name) __typeof__(name) *name;
  FUNCTIONS(MEMBER)
#undef MEMBER
  int64_t (*count)(void *, const void *, int64_t, int64_t);
} real;

/* Finds z3's functions in the library at `z3`. The others here must not be called, nor be found, before. */
int atune_counting_begin(const char *z3) {
  void *library = dlopen(z3, RTLD_LAZY | RTLD_LOCAL);
  if (!library)
    return 0;
#define FIND(name)                                                                                                      \
  if (!(real.name = (__typeof__(real.name))dlsym(library, #name)))                                                      \
    return 0;
  FUNCTIONS(FIND)
#undef FIND
  return 1;
}

/* Constraints on one variable, taken from z3's terms. */

typedef struct {
  enum { VALUE, VARIABLE, OPERATION } is;
  Z3_decl_kind operation;
  int64_t value;
  int first, n; /* the operands are nodes[operands[first]] to nodes[operands[first + n - 1]] */
} Node;

typedef struct {
  Z3_context c;
  Z3_ast variable;
  Node nodes[MAX_NODES];
  int operands[MAX_NODES];
  int n_nodes, n_operands;
  bool failed;         /* something is there that cannot be evaluated here */
  bool mentions, more; /* the variable occurs in the term that was read last; another one does */
  int64_t low, high;
} Constraints;

/* Reads a term; returns its node, or -1 once something failed. What is not known here counts as a variable. */
static int read_term(Constraints *k, Z3_ast term, int depth) {
  if (k->n_nodes == MAX_NODES || depth == MAX_DEPTH) {
    k->failed = true;
    return -1;
  }
  int at = k->n_nodes++;
  Node *node = &k->nodes[at];
  *node = (Node){.is = OPERATION};
  Z3_ast_kind kind = real.Z3_get_ast_kind(k->c, term);
  if (term == k->variable) {
    node->is = VARIABLE;
    k->mentions = true;
  } else if (kind == Z3_NUMERAL_AST) {
    node->is = VALUE;
    if (real.Z3_get_sort_kind(k->c, real.Z3_get_sort(k->c, term)) != Z3_INT_SORT ||
        !real.Z3_get_numeral_int64(k->c, term, &node->value))
      k->more = true;
  } else if (kind != Z3_APP_AST) {
    k->failed = true; /* a quantifier: the variable may be anywhere in it */
  } else {
    Z3_app app = real.Z3_to_app(k->c, term);
    int n = (int)real.Z3_get_app_num_args(k->c, app);
    node->operation = real.Z3_get_decl_kind(k->c, real.Z3_get_app_decl(k->c, app));
    node->n = n;
    node->first = k->n_operands;
    if (k->n_operands + n > MAX_NODES) {
      k->failed = true;
      return -1;
    }
    k->n_operands += n;
    switch (node->operation) {
    case Z3_OP_TRUE: case Z3_OP_FALSE: case Z3_OP_EQ: case Z3_OP_DISTINCT: case Z3_OP_ITE: case Z3_OP_AND:
    case Z3_OP_OR: case Z3_OP_NOT: case Z3_OP_IMPLIES: case Z3_OP_LE: case Z3_OP_GE: case Z3_OP_LT: case Z3_OP_GT:
    case Z3_OP_ADD: case Z3_OP_SUB: case Z3_OP_UMINUS: case Z3_OP_MUL: case Z3_OP_IDIV: case Z3_OP_MOD:
      break;
    default:
      k->more = true;
    }
    for (int i = 0; i < n && !k->failed; i++)
      k->operands[k->nodes[at].first + i] = read_term(k, real.Z3_get_app_arg(k->c, app, (unsigned)i), depth + 1);
  }
  return k->failed ? -1 : at;
}

static const Node *operand(const Constraints *k, const Node *node, int i) {
  return &k->nodes[k->operands[node->first + i]];
}

static int64_t evaluate(Constraints *k, const Node *node, int64_t x) {
  if (node->is == VALUE)
    return node->value;
  if (node->is == VARIABLE)
    return x;
#define OPERAND(i) evaluate(k, operand(k, node, i), x)
  int64_t a, b;
  switch (node->operation) {
  case Z3_OP_TRUE:
    return 1;
  case Z3_OP_FALSE:
    return 0;
  case Z3_OP_AND:
    for (int i = 0; i < node->n; i++)
      if (!OPERAND(i))
        return 0;
    return 1;
  case Z3_OP_OR:
    for (int i = 0; i < node->n; i++)
      if (OPERAND(i))
        return 1;
    return 0;
  case Z3_OP_NOT:
    return !OPERAND(0);
  case Z3_OP_IMPLIES:
    return !OPERAND(0) || OPERAND(1);
  case Z3_OP_ITE:
    return OPERAND(0) ? OPERAND(1) : OPERAND(2);
  case Z3_OP_UMINUS:
    a = OPERAND(0);
    k->failed |= __builtin_sub_overflow(0, a, &b);
    return b;
  case Z3_OP_DISTINCT:
    for (int i = 0; i < node->n; i++)
      for (int j = 0; j < i; j++)
        if (OPERAND(i) == OPERAND(j))
          return 0;
    return 1;
  case Z3_OP_ADD:
  case Z3_OP_SUB:
  case Z3_OP_MUL:
    a = OPERAND(0);
    for (int i = 1; i < node->n; i++) {
      b = OPERAND(i);
      k->failed |= node->operation == Z3_OP_ADD   ? __builtin_add_overflow(a, b, &a)
                   : node->operation == Z3_OP_SUB ? __builtin_sub_overflow(a, b, &a)
                                                  : __builtin_mul_overflow(a, b, &a);
    }
    return a;
  default: /* of two operands */
    if (node->n != 2) {
      k->failed = true;
      return 0;
    }
    a = OPERAND(0);
    b = OPERAND(1);
    switch (node->operation) {
    case Z3_OP_EQ:
      return a == b;
    case Z3_OP_LE:
      return a <= b;
    case Z3_OP_GE:
      return a >= b;
    case Z3_OP_LT:
      return a < b;
    case Z3_OP_GT:
      return a > b;
    case Z3_OP_IDIV: /* rounds down where the divisor is positive; z3 lets division by zero be anything */
    case Z3_OP_MOD:
      if (b <= 0) {
        k->failed = true;
        return 0;
      }
      int64_t rest = a % b + (a % b < 0 ? b : 0);
      return node->operation == Z3_OP_MOD ? rest : (a - rest) / b;
    default:
      k->failed = true;
      return 0;
    }
  }
#undef OPERAND
}

/* Narrows the range by a comparison of the variable with a number, or by several that must all hold. */
static void narrow(Constraints *k, const Node *node) {
  if (node->is != OPERATION)
    return;
  if (node->operation == Z3_OP_AND) {
    for (int i = 0; i < node->n; i++)
      narrow(k, operand(k, node, i));
    return;
  }
  if (node->n != 2)
    return;
  const Node *left = operand(k, node, 0), *right = operand(k, node, 1);
  bool turned = left->is == VALUE && right->is == VARIABLE;
  if (!turned && !(left->is == VARIABLE && right->is == VALUE))
    return;
  int64_t value = turned ? left->value : right->value;
  if (value < -((int64_t)1 << 40) || value > (int64_t)1 << 40)
    return;
  int64_t low = INT64_MIN, high = INT64_MAX;
  switch (node->operation) {
  case Z3_OP_LE:
    high = value;
    break;
  case Z3_OP_LT:
    high = value - 1;
    break;
  case Z3_OP_GE:
    low = value;
    break;
  case Z3_OP_GT:
    low = value + 1;
    break;
  default:
    return;
  }
  if (turned) { /* 3 <= x: what bounds the number from above bounds the variable from below */
    bool strict = node->operation == Z3_OP_LT || node->operation == Z3_OP_GT;
    bool below = node->operation == Z3_OP_LE || node->operation == Z3_OP_LT;
    low = below ? value + strict : INT64_MIN;
    high = below ? INT64_MAX : value - strict;
  }
  k->low = low > k->low ? low : k->low;
  k->high = high < k->high ? high : k->high;
}

/* Writes the values that `variable` can take beside the solver's constraints, of which all together are known to have a
 * solution; returns how many, or -1 where that is for the solver to find out. At most MAX_VALUES.
 */
int atune_count_values(Z3_context c, Z3_solver s, Z3_ast variable, int64_t *values) {
  Constraints k = {.c = c, .variable = variable, .low = INT64_MIN, .high = INT64_MAX};
  int roots[MAX_NODES], n_roots = 0, n = 0;
  Z3_ast_vector terms = real.Z3_solver_get_assertions(c, s);
  real.Z3_ast_vector_inc_ref(c, terms);
  unsigned size = real.Z3_ast_vector_size(c, terms);
  for (unsigned i = 0; i < size && !k.failed; i++) {
    int nodes = k.n_nodes, operands = k.n_operands;
    k.mentions = k.more = false;
    int root = read_term(&k, real.Z3_ast_vector_get(c, terms, i), 0);
    if (k.mentions) {
      k.failed |= k.more; /* the other one's values decide, too */
      roots[n_roots++] = root;
    } else { /* it has a solution, whatever the variable is: it shares nothing with what the others say of it */
      k.n_nodes = nodes;
      k.n_operands = operands;
    }
  }
  real.Z3_ast_vector_dec_ref(c, terms);
  for (int i = 0; i < n_roots && !k.failed; i++)
    narrow(&k, &k.nodes[roots[i]]);
  if (k.failed || k.low == INT64_MIN || k.high == INT64_MAX || k.high - k.low >= MAX_VALUES)
    return -1;
  for (int64_t x = k.low; x <= k.high; x++) {
    bool holds = true;
    for (int i = 0; i < n_roots && holds; i++)
      holds = evaluate(&k, &k.nodes[roots[i]], x);
    if (k.failed)
      return -1;
    if (holds)
      values[n++] = x;
  }
  return n;
}

/* Answering for z3. */

static __thread struct {
  enum { IDLE, FIRST, FOUND, KNOWN, ANSWERING } state;
  int64_t wanted;
  Z3_context c;
  Z3_solver s;
  Z3_model model;
  Z3_ast variable;
  int64_t first;
  int n, next;
} now;
static __thread int64_t values[MAX_VALUES];
static __thread long answered;

/* How many times this thread answered for z3 so far. */
long atune_counting_answered(void) { return answered; }

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
  now.state = FIRST;
  now.wanted = wanted;
  return real.count(prover, variable, wanted, in_a_row);
}

Z3_lbool Z3_solver_check(Z3_context c, Z3_solver s) {
  if (now.state == ANSWERING && s == now.s) {
    answered++;
    if (now.next < now.n)
      return Z3_L_TRUE;
    end();
    return Z3_L_FALSE;
  }
  Z3_lbool answer = real.Z3_solver_check(c, s);
  if (now.state == FIRST && answer == Z3_L_TRUE) {
    now.state = FOUND;
    now.c = c;
    now.s = s;
  } else {
    end();
  }
  return answer;
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

bool Z3_model_eval(Z3_context c, Z3_model model, Z3_ast term, bool complete, Z3_ast *value) {
  if (now.state == ANSWERING && model == now.model && term == now.variable) {
    *value = real.Z3_mk_int64(c, values[now.next], real.Z3_get_sort(c, term));
    return true;
  }
  bool known = real.Z3_model_eval(c, model, term, complete, value);
  if (now.state == FOUND && model == now.model && known &&
      real.Z3_get_ast_kind(c, *value) == Z3_NUMERAL_AST && real.Z3_get_numeral_int64(c, *value, &now.first)) {
    now.variable = term;
    now.state = KNOWN;
  }
  return known;
}

/* Tells whether `term` forbids the variable this one value. */
static bool forbids(Z3_context c, Z3_ast term, int64_t value) {
  if (real.Z3_get_ast_kind(c, term) != Z3_APP_AST)
    return false;
  Z3_app app = real.Z3_to_app(c, term);
  int64_t forbidden;
  return real.Z3_get_decl_kind(c, real.Z3_get_app_decl(c, app)) == Z3_OP_DISTINCT &&
         real.Z3_get_app_num_args(c, app) == 2 && real.Z3_get_app_arg(c, app, 0) == now.variable &&
         real.Z3_get_ast_kind(c, real.Z3_get_app_arg(c, app, 1)) == Z3_NUMERAL_AST &&
         real.Z3_get_numeral_int64(c, real.Z3_get_app_arg(c, app, 1), &forbidden) && forbidden == value;
}

/* Tells z3 what it was spared so far, and leaves the rest to it. */
static void hand_over(Z3_context c, Z3_solver s) {
  for (int i = 0; i < now.next; i++) {
    Z3_ast pair[2] = {now.variable, real.Z3_mk_int64(c, values[i], real.Z3_get_sort(c, now.variable))};
    real.Z3_inc_ref(c, pair[1]);
    real.Z3_solver_assert(c, s, real.Z3_mk_distinct(c, 2, pair));
    real.Z3_dec_ref(c, pair[1]);
  }
  end();
}

void Z3_solver_assert(Z3_context c, Z3_solver s, Z3_ast term) {
  if (now.state == ANSWERING && s == now.s) {
    if (forbids(c, term, values[now.next])) {
      now.next++;
      return;
    }
    hand_over(c, s);
  }
  real.Z3_solver_assert(c, s, term);
  if (now.state != KNOWN || s != now.s)
    return;
  now.next = 0;
  now.n = forbids(c, term, now.first) ? atune_count_values(c, s, now.variable, values) : -1;
  if (now.n < 0 || now.n + 1 > now.wanted)
    end(); /* which values are found first may matter */
  else
    now.state = ANSWERING;
}
