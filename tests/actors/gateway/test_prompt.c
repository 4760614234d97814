/* A prompt that cannot be made: what the client is told. */
#include "actors/gateway/prompt.h"
#include "tests/harness.h"

#include <sys/resource.h>
#include <unistd.h>

#include "tests/support/less.h"

/* No more than `more` bytes of address space from now on. */
static void limit_memory(size_t more)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    cr_assert(f != NULL);
    cr_assert_eq(fscanf(f, "%lu", &pages), 1);
    fclose(f);
    struct rlimit limit;
    cr_assert_eq(getrlimit(RLIMIT_AS, &limit), 0);
    limit.rlim_cur = pages * (size_t)sysconf(_SC_PAGESIZE) + more;
    cr_assert_eq(setrlimit(RLIMIT_AS, &limit), 0);
}

Test(prompt, out_of_memory_is_not_the_clients_mistake)
{
    enum { IDS = 8 << 20 };
    struct gw_prompts with = {.block_tokens = 256, .bos_id = -1};
    struct gw_prompt p = {0};
    struct gw_error err = {0};
    if (TS_LESS > 1)
        cr_skip_test("a sanitizer needs address space of its own");
    struct gw_request r = {.protocol = GW_COMPLETIONS, .n_prompt_ids = IDS};
    r.prompt_ids = calloc(IDS, sizeof *r.prompt_ids);
    cr_assert(r.prompt_ids != NULL);
    limit_memory(4 << 20);
    cr_expect_not(gw_prompt_make(&with, &r, &p, &err));
    cr_expect_eq(err.status, 503, "%d", err.status);
    cr_expect_str_eq(err.code, "out_of_memory");
    cr_expect_str_eq(err.message, "the server is out of memory");
    free(r.prompt_ids);
    gw_prompt_free(&p);
}
