/* Files of segments: at most so many are open, and the one that was not used for longest is closed for another one. A
 * name is never used twice, so a file that is opened again is the same, or is no more. */
#include <errno.h>

#include "kvtiers/shared_impl.h"

enum { LEFT = 4 /* descriptors for files that are not segments */ };

static void queue_add(struct shared_queue *q, struct shared_segment *s, bool first)
{
    if (!q->n)
        q->tail = &q->head;
    s->file_link = first ? &q->head : q->tail;
    s->next_file = first && q->n ? q->head : NULL;
    *s->file_link = s;
    if (s->next_file)
        s->next_file->file_link = &s->next_file;
    else
        q->tail = &s->next_file;
    q->n++;
}

static void queue_remove(struct shared_queue *q, struct shared_segment *s)
{
    *s->file_link = s->next_file;
    if (s->next_file)
        s->next_file->file_link = s->file_link;
    else
        q->tail = s->file_link;
    q->n--;
}

static void want(struct shared *t, struct shared_segment *s, bool first)
{
    s->file_state = FILE_WAITS;
    queue_add(&t->files_wanted, s, first);
}

bool shared_file_use(struct shared *t, struct shared_segment *s)
{
    if (s->users++ == 0 && s->file_state == FILE_OPEN)
        queue_remove(&t->files_idle, s);
    if (s->file_state == FILE_CLOSED)
        want(t, s, false);
    return s->file_state == FILE_OPEN;
}

static void on_closed(struct kv_io *io)
{
    struct shared_segment *s = io->ctx;
    struct shared *t = s->t;
    t->in_flight--;
    t->files--;
    t->files_closing--;
    s->file_state = FILE_CLOSED;
    if (s->users)
        want(t, s, false);
    shared_pump(t);
}

static void begin(struct shared *t, struct shared_segment *s, struct kv_io io)
{
    s->file_io = io;
    t->in_flight++;
    kv_io_start(t->p.storage, &s->file_io);
}

static void close_file(struct shared *t, struct shared_segment *s)
{
    s->file_state = FILE_CLOSING;
    s->doubtful = false;
    t->files_closing++;
    begin(t, s, (struct kv_io){.op = KV_IO_CLOSE, .file = s->file, .done = on_closed, .ctx = s});
}

void shared_file_leave(struct shared *t, struct shared_segment *s)
{
    if (--s->users || s->file_state != FILE_OPEN)
        return;
    if (s->doubtful)
        close_file(t, s);
    else
        queue_add(&t->files_idle, s, false);
}

bool shared_file_close(struct shared *t, struct shared_segment *s)
{
    if (s->file_state == FILE_OPEN && !s->users) {
        queue_remove(&t->files_idle, s);
        close_file(t, s);
    }
    return s->file_state == FILE_CLOSED;
}

bool shared_files_fewer(struct shared *t, int64_t result)
{
    int most = t->files - t->files_closing - LEFT;
    if (result != -EMFILE && result != -ENFILE)
        return false;
    t->files_most = most < 1 ? 1 : most < t->files_most ? most : t->files_most;
    return true;
}

/* Tells all who wait. */
static void go_on(struct shared *t, struct shared_segment *s, int status)
{
    struct shared_read *x = s->waiting;
    s->waiting = NULL;
    if (s->load_waits) {
        s->load_waits = false;
        shared_load_go_on(t, status);
    }
    for (struct shared_read *next; x; x = next) {
        next = x->next;
        shared_read_go_on(t, x, status);
    }
}

static void on_opened(struct kv_io *io)
{
    struct shared_segment *s = io->ctx;
    struct shared *t = s->t;
    int status = io->result < 0 ? (int)io->result : 0;
    t->in_flight--;
    if (!status) {
        s->file = (int)io->result;
        s->file_state = FILE_OPEN;
        s->users++; /* one of those who wait may be the last one */
        go_on(t, s, 0);
        shared_file_leave(t, s);
    } else {
        t->files--;
        s->file_state = FILE_CLOSED;
        if (shared_files_fewer(t, status) && t->files) {
            want(t, s, true);
        } else {
            s->pins++;
            go_on(t, s, status);
            s->pins--;
        }
    }
    shared_pump(t);
}

void shared_files_turn(struct shared *t)
{
    while (t->files_wanted.n && t->files < t->files_most) {
        struct shared_segment *s = t->files_wanted.head;
        queue_remove(&t->files_wanted, s);
        s->file_state = FILE_OPENING;
        t->files++;
        begin(t, s,
              (struct kv_io){.op = KV_IO_OPEN,
                             .path = s->name,
                             .flags = t->p.direct ? (unsigned)KV_OPEN_DIRECT : 0,
                             .done = on_opened,
                             .ctx = s});
    }
    while (t->files_idle.n && t->files - t->files_closing > t->files_most - t->files_wanted.n) {
        struct shared_segment *s = t->files_idle.head;
        queue_remove(&t->files_idle, s);
        close_file(t, s);
    }
}
