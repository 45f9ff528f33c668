/* The start of a program that runs on glibc 2.28 too (see glibc_2_28.h); linked with --wrap=__libc_start_main.
 *
 * Since glibc 2.34 the C library runs an executable's constructors; the old entry expects the executable to. */
typedef void (*Constructor)(int, char **, char **);
typedef int (*Main)(int, char **, char **);

extern Constructor __init_array_start[], __init_array_end[];

int old_start(Main, int, char **, Constructor, void (*)(void), void (*)(void), void *);
__asm__(".symver old_start,__libc_start_main@GLIBC_2.2.5");

/* libstdc++ asks this (glibc 2.32) whether it may count references without atomics: it may not. */
char __libc_single_threaded = 0;

static void construct(int argc, char **argv, char **environment) {
    for (Constructor *each = __init_array_start; each < __init_array_end; ++each) (*each)(argc, argv, environment);
}

int __wrap___libc_start_main(Main main, int argc, char **argv, Constructor init, void (*fini)(void),
                             void (*loader_fini)(void), void *stack_end);
int __wrap___libc_start_main(Main main, int argc, char **argv, Constructor init, void (*fini)(void),
                             void (*loader_fini)(void), void *stack_end) {
    return old_start(main, argc, argv, init ? init : construct, fini, loader_fini, stack_end);
}
