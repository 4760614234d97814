/* What the double of the USRBIO library (usrbio.c) does to its caller. Tests find the struct by dlsym("usrbio_faults");
 * a program that loads the double itself takes it from $WEFT_USRBIO_FAULTS ("again=150,late=400,seed=7"), when the
 * double is loaded. */
#ifndef WEFT_TESTS_DOUBLES_USRBIO_FAULTS_H
#define WEFT_TESTS_DOUBLES_USRBIO_FAULTS_H

#include <stdint.h>

/* Per thousand, except errors_left and seed. */
struct usrbio_faults {
    unsigned again;      /* prep_io: the ring is full */
    unsigned order;      /* wait_for_ios: begins at any place of the ring, not at its oldest request */
    unsigned late;       /* each look at a request leaves it for later */
    unsigned short_move; /* fewer bytes than asked for, of any number from 1 */
    unsigned transient;  /* a completion with EAGAIN or EINTR: nothing was moved */
    unsigned error;      /* a completion with EIO */
    unsigned refuse;     /* reg_fd: ENOMEM, positive as its errors are */
    unsigned calls;      /* submit_ios, wait_for_ios: fail with EINTR, having done nothing */
    unsigned open;       /* iorcreate4: ENOMEM */
    int64_t errors_left; /* EIO so often at most; -1: any number */
    uint64_t seed;
};

/* How often it happened, and a use that the interface forbids: found by dlsym("usrbio_counts"). */
struct usrbio_counts {
    uint64_t moves, again, reordered, late, short_moves, transients, errors, refused, calls, unopened;
    uint64_t misuses; /* memory of a request in flight given away again or taken away, a descriptor closed before
                       * dereg_fd, a ring that reads holes */
    int rings, iovs, descriptors; /* that exist */
};

#endif
