/* Implementation of text.h. */
#include "actors/gateway/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/gateway/gateway.h"
#include "actors/gateway/reply.h"

/* ---- the work ---- */

static enum gw_protocol protocol_of(enum gw_text what)
{
    return what == GW_TEXT_COUNT ? GW_MESSAGES : GW_CHAT;
}

static void fail(struct gw_text_job *j, int status, const char *param, const char *message)
{
    gw_error_set(&j->err, protocol_of(j->what), status, param, "%s", message);
}

static void put_json(struct gw_text_job *j, json_t *v)
{
    char *text = json_dumps(v, JSON_COMPACT | JSON_PRESERVE_ORDER);
    gw_bytes_puts(&j->out, text ? text : "");
    j->done = text && !j->out.failed;
    if (!j->done)
        fail(j, 500, NULL, "out of memory");
    free(text);
    json_decref(v);
}

static void tokenize(struct gw_text_job *j, const json_t *text)
{
    struct cfg_error e;
    struct mdl_ids ids = {0};
    if (!json_is_string(text)) {
        fail(j, 400, "prompt", "give a text");
        return;
    }
    if (mdl_tok_encode(j->with->enc, json_string_value(text), json_string_length(text), 0, &ids, &e)) {
        fail(j, 400, "prompt", e.msg);
    } else {
        json_t *list = json_array();
        for (size_t i = 0; i < ids.n; i++)
            json_array_append_new(list, json_integer(ids.v[i]));
        put_json(j, json_pack("{s:o,s:i}", "tokens", list, "count", (int)ids.n));
    }
    mdl_ids_free(&ids);
}

static bool decode(const struct gw_text_job *j, const json_t *list, struct mdl_text *out)
{
    struct mdl_tok_stream s;
    size_t i;
    json_t *v;
    mdl_tok_stream_init(&s, j->with->tok, 0);
    json_array_foreach ((json_t *)list, i, v) {
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id >= mdl_tokenizer_vocab_size(j->with->tok) ||
            mdl_tok_stream_push(&s, (int32_t)id, out))
            return false;
    }
    return !mdl_tok_stream_end(&s, out);
}

static void detokenize(struct gw_text_job *j, const json_t *list)
{
    struct mdl_text text = {0};
    if (!json_is_array(list))
        fail(j, 400, "tokens", "give a list of token ids");
    else if (!decode(j, list, &text))
        fail(j, 400, "tokens", "must be ids of this model's tokenizer");
    else
        put_json(j, json_pack("{s:o}", "prompt", json_stringn(text.s ? text.s : "", text.n)));
    mdl_text_free(&text);
}

static void count(struct gw_text_job *j)
{
    struct gw_request r;
    struct mdl_ids ids = {0};
    if (!gw_request_parse_count(j->body, j->len, &r, &j->err))
        return;
    j->done = gw_prompt_ids(j->with, &r, &ids, &j->err) && !gw_reply_count((int)ids.n, &j->out);
    mdl_ids_free(&ids);
    gw_request_free(&r);
}

void gw_text_job_run(struct gw_text_job *j)
{
    json_error_t je;
    if (j->what == GW_TEXT_COUNT) {
        count(j);
    } else {
        json_t *root = json_loadb(j->body, j->len, JSON_REJECT_DUPLICATES, &je);
        if (j->what == GW_TEXT_TOKENIZE)
            tokenize(j, json_object_get(root, "prompt"));
        else
            detokenize(j, json_object_get(root, "tokens"));
        json_decref(root);
    }
    free(j->body);
    j->body = NULL;
}

/* ---- as a job ---- */

static struct gw_text_job *of(struct act_job *job)
{
    return (struct gw_text_job *)(void *)job;
}

static int run(struct act_job *job)
{
    gw_text_job_run(of(job));
    return 0;
}

static void release(struct act_job *job)
{
    gw_text_job_free(of(job));
}

struct gw_text_job *gw_text_job_new(const struct gw_prompts *with, enum gw_text what, char *body, size_t len)
{
    struct gw_text_job *j = calloc(1, sizeof *j);
    if (!j) {
        free(body);
        return NULL;
    }
    j->job = (struct act_job){.run = run, .release = release, .name = "text", .cost_ns = 40 * (int64_t)len};
    j->with = with;
    j->what = what;
    j->body = body;
    j->len = len;
    return j;
}

void gw_text_job_free(struct gw_text_job *j)
{
    if (!j)
        return;
    free(j->body);
    gw_bytes_free(&j->out);
    free(j);
}

/* ---- the actor of a long one ---- */

struct text {
    struct gw_job *job;
};

static void answer_error(struct text *t, int status, const char *message)
{
    struct gw_error err;
    gw_error_set(&err, t->job->protocol, status, NULL, "%s", message);
    gw_answer_error(t->job->g, t->job->x, t->job->protocol, &err);
    t->job->gone = true;
}

static void submit(struct act_self *self, struct text *t)
{
    struct gw_text_job *j = t->job->text;
    t->job->text = NULL;
    if (act_job_submit(self, t->job->g->helper, t->job->id, &j->job) == 0)
        return;
    gw_text_job_free(j);
    answer_error(t, 503, "the server takes no long texts at this moment");
    act_stop(self, 0);
}

static void take(struct act_self *self, struct text *t, struct act_msg *m)
{
    struct act_job *job = act_job_take(m);
    if (m->type == ACT_JOB_DONE)
        gw_text_answer(t->job->g, t->job->x, of(job));
    else
        answer_error(t, 503, "a part of the engine is not there");
    t->job->gone = true;
    if (job)
        gw_text_job_free(of(job));
    act_stop(self, 0);
}

static int text_receive(struct act_self *self, void *state, struct act_msg *m, int n)
{
    struct text *t = state;
    if (t->job->gone)
        act_stop(self, 0);
    else if (t->job->text)
        submit(self, t);
    for (int i = 0; i < n && !t->job->gone; i++)
        if (m[i].type == ACT_JOB_DONE || m[i].type == ACT_UNDELIVERABLE)
            take(self, t, &m[i]);
    return 0;
}

static int text_start(struct act_self *self, void *state, const void *arg)
{
    struct text *t = state;
    t->job = (struct gw_job *)arg;
    t->job->self = self;
    act_yield(self);
    return 0;
}

static void text_stop(struct act_self *self, void *state, int reason)
{
    struct text *t = state;
    (void)self;
    (void)reason;
    if (!t->job->gone)
        answer_error(t, 503, "the server is stopping");
    gw_text_job_free(t->job->text);
    free(t->job);
}

const struct act_behaviour gw_text_behaviour = {
    .name = "text",
    .state_size = sizeof(struct text),
    .start = text_start,
    .receive = text_receive,
    .stop = text_stop,
};
