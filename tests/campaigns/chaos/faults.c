/* Lets the calls that change files below some folders fail: preloaded, so that it sees those of C, C++ and Rust too.
 *
 * faults_arm(folders, first, last, number, record): from now on, in this process and those it forks, the calls from
 * the first to the last, counted from 1 over all of them, fail with the errno `number`. Each call is written as a line
 * to the file descriptor `record` if that is not negative. `folders` is a list separated by colons. Without the file
 * system's answer being changed otherwise: a call that is to fail is not made.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

struct shared { atomic_long count, hits; long first, last; int number, record; char folders[4096]; };
struct shared *faults_state;
#define state faults_state


#define REAL(name) static __typeof__(name) *real; if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static void *map(size_t length) {
    return (void *)syscall(SYS_mmap, NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0L);
}

int faults_arm(const char *folders, long first, long last, int number, int record) {
    struct shared *fresh = map(sizeof *fresh);
    if (fresh == MAP_FAILED) return -1;
    fresh->first = first; fresh->last = last; fresh->number = number; fresh->record = record;
    strncpy(fresh->folders, folders, sizeof fresh->folders - 1);
    state = fresh;
    return 0;
}
void faults_disarm(void) { state = NULL; }
long faults_count(void) { return state ? state->count : 0; }
long faults_hits(void) { return state ? state->hits : 0; }

static int inside(const char *path) {
    for (const char *one = state->folders; *one;) {
        const char *end = strchrnul(one, ':');
        size_t length = (size_t)(end - one);
        if (length && !strncmp(path, one, length) && (path[length] == '/' || !path[length])) return 1;
        one = *end ? end + 1 : end;
    }
    return 0;
}

static int of_handle(int handle, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return path[0] == '/';
}

static int of_name(int folder, const char *name, char *path) {
    if (!name) return 0;
    if (name[0] == '/') { snprintf(path, PATH_MAX, "%s", name); return 1; }
    char base[PATH_MAX];
    if (folder == AT_FDCWD) {
        if (syscall(SYS_getcwd, base, sizeof base) <= 0) return 0;
    } else if (!of_handle(folder, base)) return 0;
    snprintf(path, PATH_MAX, "%.2000s/%.2000s", base, name);
    return 1;
}

static int fails(const char *kind, const char *path) {
    if (!inside(path)) return 0;
    long number = ++state->count;
    int hit = number >= state->first && number <= state->last;
    if (state->record >= 0) {
        char line[PATH_MAX + 64];
        int length = snprintf(line, sizeof line, "%ld %s %s\n", number, kind, path);
        syscall(SYS_write, state->record, line, (size_t)length);
    }
    if (hit) { state->hits++; errno = state->number; }
    return hit;
}
static int at(const char *kind, int folder, const char *name) {
    char path[PATH_MAX];
    int saved = errno;
    if (state && of_name(folder, name, path) && fails(kind, path)) return 1;
    errno = saved;
    return 0;
}
static int on(const char *kind, int handle) {
    char path[PATH_MAX];
    int saved = errno;
    if (state && of_handle(handle, path) && fails(kind, path)) return 1;
    errno = saved;
    return 0;
}

#define WRITES(flags) ((flags) & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC))
#define MODE mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { va_list list; va_start(list, flags); mode = va_arg(list, mode_t); va_end(list); }
#define OPEN(name) int name(const char *path, int flags, ...) { MODE \
    REAL(name); \
    if (WRITES(flags) && at("open", AT_FDCWD, path)) return -1; return real(path, flags, mode); }
#define OPENAT(name) int name(int folder, const char *path, int flags, ...) { MODE \
    REAL(name); \
    if (WRITES(flags) && at("open", folder, path)) return -1; return real(folder, path, flags, mode); }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)

#define ON(result, name, kind, handle, bad, declared, passed) result name declared { \
    REAL(name); if (on(kind, handle)) return bad; return real passed; }
#define AT(result, name, kind, folder, path, declared, passed) result name declared { \
    REAL(name); if (at(kind, folder, path)) return -1; return real passed; }

ON(ssize_t, write, "write", h, -1, (int h, const void *b, size_t n), (h, b, n))
ON(ssize_t, pwrite, "write", h, -1, (int h, const void *b, size_t n, off_t o), (h, b, n, o))
ON(ssize_t, pwrite64, "write", h, -1, (int h, const void *b, size_t n, off64_t o), (h, b, n, o))
ON(ssize_t, writev, "write", h, -1, (int h, const struct iovec *v, int n), (h, v, n))
ON(ssize_t, sendfile, "write", h, -1, (int h, int i, off_t *o, size_t n), (h, i, o, n))
ON(ssize_t, sendfile64, "write", h, -1, (int h, int i, off64_t *o, size_t n), (h, i, o, n))
ON(ssize_t, copy_file_range, "write", h, -1, (int i, off64_t *a, int h, off64_t *b, size_t n, unsigned f), (i, a, h, b, n, f))
ON(int, fsync, "fsync", h, -1, (int h), (h))
ON(int, fdatasync, "fsync", h, -1, (int h), (h))
ON(int, ftruncate, "truncate", h, -1, (int h, off_t n), (h, n))
ON(int, ftruncate64, "truncate", h, -1, (int h, off64_t n), (h, n))
ON(int, posix_fallocate, "truncate", h, errno, (int h, off_t a, off_t b), (h, a, b))
AT(int, truncate, "truncate", AT_FDCWD, p, (const char *p, off_t n), (p, n))
AT(int, truncate64, "truncate", AT_FDCWD, p, (const char *p, off64_t n), (p, n))
AT(int, rename, "rename", AT_FDCWD, b, (const char *a, const char *b), (a, b))
AT(int, renameat, "rename", g, b, (int f, const char *a, int g, const char *b), (f, a, g, b))
AT(int, renameat2, "rename", g, b, (int f, const char *a, int g, const char *b, unsigned x), (f, a, g, b, x))
AT(int, link, "link", AT_FDCWD, b, (const char *a, const char *b), (a, b))
AT(int, linkat, "link", g, b, (int f, const char *a, int g, const char *b, int x), (f, a, g, b, x))
AT(int, symlink, "link", AT_FDCWD, b, (const char *a, const char *b), (a, b))
AT(int, unlink, "unlink", AT_FDCWD, p, (const char *p), (p))
AT(int, unlinkat, "unlink", f, p, (int f, const char *p, int x), (f, p, x))
AT(int, rmdir, "unlink", AT_FDCWD, p, (const char *p), (p))
AT(int, mkdir, "mkdir", AT_FDCWD, p, (const char *p, mode_t m), (p, m))
AT(int, mkdirat, "mkdir", f, p, (int f, const char *p, mode_t m), (f, p, m))

#define MMAP(name, offset) void *name(void *a, size_t n, int p, int f, int h, offset o) { \
    REAL(name); \
    if (h >= 0 && !(f & MAP_ANONYMOUS) && on("mmap", h)) return MAP_FAILED; return real(a, n, p, f, h, o); }
MMAP(mmap, off_t) MMAP(mmap64, off64_t)
