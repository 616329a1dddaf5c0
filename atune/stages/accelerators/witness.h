/* What witness.c does in place of z3, for counting.c, which stands before it. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <z3.h>

/* A table of functions of z3's, by a list FUNCTIONS of them: its members, and how `real` finds each in z3's library. */
#define MEMBER(name) __typeof__(name) *name;
#define FIND(name)                                                                                                     \
  if (!(real.name = (__typeof__(real.name))dlsym(library, #name)))                                                     \
    return 0;

#pragma GCC visibility push(hidden)
int witness_begin(void *library); /* false where `library`, z3's, lacks a function */
void witness_assert(Z3_context, Z3_solver, Z3_ast);
Z3_lbool witness_check(Z3_context, Z3_solver);
Z3_lbool witness_check_assumptions(Z3_context, Z3_solver, unsigned, Z3_ast const *);
Z3_ast_vector witness_get_assertions(Z3_context, Z3_solver);
Z3_model witness_get_model(Z3_context, Z3_solver);
bool witness_has(Z3_context, Z3_solver); /* whether z3 is not told and asked all that the solver is, when it is */
void witness_del_context(Z3_context);
extern __thread bool witness_off;      /* whether z3 is asked everything, in this thread */
extern __thread bool witness_doubtful; /* whether z3 was at a loss, or not far from it */
#pragma GCC visibility pop
