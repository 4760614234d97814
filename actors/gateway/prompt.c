/* Implementation of prompt.h. */
#include "actors/gateway/prompt.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actors/gateway/bytes.h"
#include "model/chat.h"

/* What is wrong is the client's, except for memory. */
static bool prompt_failed(const struct gw_request *r, int status, const struct cfg_error *e, struct gw_error *err)
{
    if (status == -ENOMEM) {
        gw_error_set(err, r->protocol, 503, NULL, "the server is out of memory");
        snprintf(err->code, sizeof err->code, "out_of_memory");
    } else {
        gw_error_set(err, r->protocol, 400, NULL, "%.500s", e->msg);
    }
    return false;
}

/* A marker of the chat form as its id. */
static int add_marker(const struct gw_prompts *with, const char *name, struct mdl_ids *out)
{
    int32_t id = mdl_tokenizer_added_id(with->tok, name);
    return id < 0 ? -EINVAL : mdl_ids_add(out, id);
}

/* A tool call that must come: its beginning is put behind the prompt, so that the model goes on inside it. Reasoning,
 * if the prompt has begun any, ends before it. */
static int force_call(const struct gw_prompts *with, struct gw_request *r, struct mdl_ids *out, struct cfg_error *e)
{
    char name[160] = "";
    struct gw_bytes text = {0};
    if (r->tool_choice == GW_TOOLS_NAMED)
        snprintf(name, sizeof name, "%s\">\n", r->tool_name);
    char last[192];
    snprintf(last, sizeof last, " invoke name=\"%s", name);
    const char *const parts[] = {
        r->thinking ? MDL_CHAT_END_THINK : NULL, "\n\n<", MDL_CHAT_DSML, " calls>\n<", MDL_CHAT_DSML, last};
    int status = 0;
    for (int i = 0; i < 6 && !status; i++) {
        if (!parts[i])
            continue;
        bool marker = i % 2 == 0;
        status =
            marker ? add_marker(with, parts[i], out) : mdl_tok_encode(with->enc, parts[i], strlen(parts[i]), 0, out, e);
        if (status && marker)
            cfg_error_set(e, EINVAL, "tool_choice: this model's tokenizer has no token %s, so calls cannot be forced",
                          parts[i]);
        gw_bytes_puts(&text, parts[i]);
    }
    if (!status && text.failed)
        status = cfg_error_set(e, ENOMEM, "out of memory");
    if (status)
        gw_bytes_free(&text);
    else
        r->forced = text.p;
    return status;
}

/* Tools that must not be called: the markup's own token cannot come. */
static int forbid_calls(const struct gw_prompts *with, struct gw_request *r, struct cfg_error *e)
{
    int32_t id = mdl_tokenizer_added_id(with->tok, MDL_CHAT_DSML);
    struct gw_logit_bias *more = id < 0 ? NULL : realloc(r->bias, ((size_t)r->n_bias + 1) * sizeof *more);
    if (id < 0)
        return 0;
    if (!more)
        return cfg_error_set(e, ENOMEM, "out of memory");
    r->bias = more;
    for (int i = 0; i < r->n_bias; i++)
        if (more[i].id == id) {
            more[i].bias = -100;
            return 0;
        }
    more[r->n_bias++] = (struct gw_logit_bias){id, -100};
    return 0;
}

/* The text of a prompt that came as ids, for a reply that repeats it. */
static int echo_text(const struct gw_prompts *with, struct gw_request *r)
{
    struct mdl_text text = {0};
    int status = mdl_tok_decode(with->tok, r->prompt_ids, (size_t)r->n_prompt_ids, 0, &text);
    free(r->prompt);
    r->prompt = text.s;
    r->prompt_len = text.n;
    return status;
}

static int encode_completion(const struct gw_prompts *with, struct gw_request *r, struct mdl_ids *out,
                             struct cfg_error *e)
{
    int status = 0;
    for (int i = 0; r->prompt_ids && !status && i < r->n_prompt_ids; i++)
        status = mdl_ids_add(out, r->prompt_ids[i]);
    if (r->prompt_ids)
        return status || !r->echo ? status : echo_text(with, r);
    if (with->bos_id >= 0)
        status = mdl_ids_add(out, with->bos_id);
    return status ? status : mdl_tok_encode(with->enc, r->prompt, r->prompt_len, 0, out, e);
}

static int encode_conversation(const struct gw_prompts *with, struct gw_request *r, struct mdl_ids *out,
                               struct cfg_error *e)
{
    struct mdl_chat_prompt p = {0};
    const struct mdl_chat_options options = {.chat_mode = true};
    int status = mdl_chat_render(r->conversation, &options, &p, e);
    if (!status)
        status = mdl_chat_encode(with->tok, with->enc, &p, out, e);
    r->thinking = p.thinking;
    r->open_text = p.open_text;
    mdl_chat_prompt_free(&p);
    if (!status && r->has_tools && (r->tool_choice == GW_TOOLS_REQUIRED || r->tool_choice == GW_TOOLS_NAMED))
        status = force_call(with, r, out, e);
    if (!status && r->has_tools && r->tool_choice == GW_TOOLS_NONE)
        status = forbid_calls(with, r, e);
    return status;
}

bool gw_prompt_ids(const struct gw_prompts *with, struct gw_request *r, struct mdl_ids *out, struct gw_error *err)
{
    struct cfg_error e = {0};
    int status =
        r->protocol == GW_COMPLETIONS ? encode_completion(with, r, out, &e) : encode_conversation(with, r, out, &e);
    return !status || prompt_failed(r, status, &e, err);
}

/* ---- the chain ---- */

int gw_prompt_chain(const struct gw_prompts *with, const char *salt, struct gw_prompt *p)
{
    int per = with->block_tokens, n = 1 + (int)p->ids.n / per;
    struct kv_key *more = realloc(p->chain, (size_t)n * sizeof *more);
    if (!more)
        return -ENOMEM;
    p->chain = more;
    if (!p->n_chain) {
        struct kv_identity identity = with->identity;
        identity.salt = salt;
        identity.salt_len = strlen(salt);
        kv_key_root(&identity, &more[0]);
        p->n_chain = 1;
    }
    for (; p->n_chain < n; p->n_chain++)
        kv_key_extend(&more[p->n_chain - 1], p->ids.v + (size_t)(p->n_chain - 1) * (size_t)per, per, &more[p->n_chain]);
    return 0;
}

bool gw_prompt_make(const struct gw_prompts *with, struct gw_request *r, struct gw_prompt *out, struct gw_error *err)
{
    if (!gw_prompt_ids(with, r, &out->ids, err))
        return false;
    int status = gw_prompt_chain(with, r->cache_salt, out);
    return !status || prompt_failed(r, status, &(struct cfg_error){0}, err);
}

void gw_prompt_free(struct gw_prompt *p)
{
    mdl_ids_free(&p->ids);
    free(p->chain);
    *p = (struct gw_prompt){0};
}

/* ---- as a job ---- */

static int run(struct act_job *job)
{
    struct gw_prompt_job *j = (struct gw_prompt_job *)(void *)job;
    j->parsed = gw_request_parse(j->protocol, j->body, j->len, &j->request, &j->err);
    if (j->parsed && !gw_request_check_ids(&j->request, j->with->vocab, &j->err)) {
        gw_request_free(&j->request);
        j->parsed = false;
    }
    j->made = j->parsed && gw_prompt_make(j->with, &j->request, &j->prompt, &j->err);
    free(j->body);
    j->body = NULL;
    return 0;
}

static void release(struct act_job *job)
{
    gw_prompt_job_free((struct gw_prompt_job *)(void *)job);
}

struct gw_prompt_job *gw_prompt_job_new(const struct gw_prompts *with, enum gw_protocol protocol, char *body,
                                        size_t len)
{
    struct gw_prompt_job *j = calloc(1, sizeof *j);
    if (!j) {
        free(body);
        return NULL;
    }
    j->job = (struct act_job){.run = run, .release = release, .name = "prompt", .cost_ns = 40 * (int64_t)len};
    j->with = with;
    j->protocol = protocol;
    j->body = body;
    j->len = len;
    return j;
}

void gw_prompt_job_free(struct gw_prompt_job *j)
{
    if (!j)
        return;
    free(j->body);
    gw_request_free(&j->request);
    gw_prompt_free(&j->prompt);
    free(j);
}
