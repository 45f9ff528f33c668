/* Included into every file of a wheel for x86-64: symbols that newer C libraries give another version are asked
 * for in the old one, so that a wheel built on any distribution runs on all since glibc 2.28. */
#if defined(__linux__) && defined(__x86_64__)
__asm__(".symver pthread_create,pthread_create@GLIBC_2.2.5");
__asm__(".symver pthread_join,pthread_join@GLIBC_2.2.5");
__asm__(".symver pthread_once,pthread_once@GLIBC_2.2.5");
#endif
