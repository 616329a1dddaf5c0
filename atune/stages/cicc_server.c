/* Turns cicc, the compiler inside nvcc, into a server that has parsed the headers already.
 *
 * It is preloaded into a cicc that compiles "#include <headers>, #include BODY". When cicc opens BODY, it has parsed
 * all headers. It stops there, and forks a child for every request on the socket. A child enters the folder that
 * the request names, compiles the BODY in it, and writes its output there. cicc_server.py speaks the same protocol.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define BODY "atune_body.cu"
#define MESSAGES "messages"

static int connection = -1;
static int connection_flags;

static void die_with_parent(void) { prctl(PR_SET_PDEATHSIG, SIGKILL); }

__attribute__((constructor)) static void begin(void) { die_with_parent(); }

/* Wait for children instead of ignoring SIGCHLD, so that their CPU time counts as this process's. */
static void reap(int number) {
  int saved = errno;
  (void)number;
  while (waitpid(-1, NULL, WNOHANG) > 0) {
  }
  errno = saved;
}

/* Sends the status. The connection closes after that, which tells the client that all output is written. */
static void answer(int status, void *unused) {
  char byte = (char)(status != 0);
  (void)unused;
  fcntl(connection, F_SETFL, connection_flags);
  if (write(connection, &byte, 1) != 1)
    _exit(1);
}

static int receive(char *folder, size_t size) {
  size_t n = 0;
  while (n < size) { /* the folder's name ends with a zero byte */
    ssize_t got = read(connection, folder + n, 1);
    if (got < 0 && errno == EINTR)
      continue;
    if (got <= 0)
      return -1;
    if (folder[n++] == 0)
      return 0;
  }
  return -1;
}

static void become_child(pid_t parent, int listener) {
  char folder[4096];
  int messages;
  signal(SIGCHLD, SIG_DFL);
  die_with_parent();
  close(listener);
  if (getppid() != parent || receive(folder, sizeof folder) || chdir(folder))
    _exit(1);
  messages = open(MESSAGES, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (messages < 0 || dup2(messages, 1) < 0 || dup2(messages, 2) < 0)
    _exit(1);
  /* If the client is killed, at its deadline for example, this compile must end, too: SIGKILL on a closed socket. */
  connection_flags = fcntl(connection, F_GETFL);
  fcntl(connection, F_SETOWN, getpid());
  fcntl(connection, F_SETSIG, SIGKILL);
  fcntl(connection, F_SETFL, connection_flags | O_ASYNC);
  if (recv(connection, folder, 1, MSG_PEEK | MSG_DONTWAIT) == 0) /* the client is gone already */
    _exit(1);
  if (on_exit(answer, NULL))
    _exit(1);
}

/* Returns only in children. */
static void serve(void) {
  const char *text = getenv("ATUNE_LISTENER");
  int listener = text ? atoi(text) : -1;
  pid_t parent = getpid();
  struct sigaction action = {.sa_handler = reap, .sa_flags = SA_RESTART};
  sigaction(SIGCHLD, &action, NULL);
  for (;;) {
    pid_t child;
    connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (connection < 0) {
      if (errno == EINTR || errno == ECONNABORTED)
        continue;
      _exit(1);
    }
    child = fork();
    if (child == 0) {
      become_child(parent, listener);
      return;
    }
    close(connection); /* if there is no memory for a child, the client sees its connection closed */
  }
}

static void look(const char *path) {
  if (connection < 0 && path && strcmp(path, BODY) == 0)
    serve();
}

#define INTERPOSED(name)                                                       \
  FILE *name(const char *path, const char *mode) {                             \
    FILE *(*next)(const char *, const char *) =                                \
        (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, #name);      \
    look(path);                                                                \
    return next(path, mode);                                                   \
  }

INTERPOSED(fopen)
INTERPOSED(fopen64)

int open(const char *path, int flags, ...) {
  static int (*next)(const char *, int, ...);
  va_list rest;
  mode_t mode;
  va_start(rest, flags);
  mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  if (!next)
    next = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
  look(path);
  return next(path, flags, mode);
}
