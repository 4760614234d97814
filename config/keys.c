/* The table of configuration keys: the one place that says what may stand in a file. Everything else about keys
 * (parsing, checks, --explain, docs/CONFIG.md) reads it. A new key is one field in config.h and one line here; paths of
 * one group stand together, the group first. */
#include "config/keys.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/units.h"

static const char *const cpu_values[] = {"auto", "scalar", "avx2", "avx512", NULL};
static const char *const bridge_values[] = {"truncate", "full", NULL};
static const char *const lost_values[] = {"takeover", "wait", NULL};
static const char *const handoff_values[] = {"full", "encoder", "global", NULL};
static const char *const routing_values[] = {"auto", "load", "prefix", NULL};
static const char *const speculation_values[] = {"off", "fixed", "dynamic", NULL};
static const char *const acceptance_values[] = {"match", "rejection", NULL};
static const char *const engram_values[] = {"mapped", "host", "ssd", NULL};
static const char *const budget_values[] = {"lagged", "early_stop", NULL};
static const char *const provider_values[] = {"tcp", "rdma", NULL};
static const char *const level_values[] = {"error", "warning", "info", "debug", NULL};
static const char *const format_values[] = {"text", "json", NULL};
static const char *const role_values[] = {"gateway", "prefill", "decode", "expert", "kv", NULL};

#define AT(field) .offset = offsetof(struct cfg_config, field), .size = sizeof(((struct cfg_config *)0)->field)
#define IN_NODE(field) .offset = offsetof(struct cfg_node, field), .size = sizeof(((struct cfg_node *)0)->field)

const struct cfg_key cfg_keys[] = {
    {"model", CFG_GROUP, .help = "The model that is served."},
    {"model.path", CFG_TEXT, "folder", AT(model.path), .fallback = "samples/tiny",
     .help = "Folder with config.json, the safetensors files and tokenizer.json. A relative path starts at the working "
             "directory of the process."},
    {"model.name", CFG_TEXT, AT(model.name), .fallback = "",
     .help = "Name under which the model is offered to clients. Empty: the last part of model.path."},
    {"model.revision", CFG_TEXT, AT(model.revision), .fallback = "",
     .help =
         "Revision that the checkpoint must have: 16 hex digits, as weft check prints them. Empty: any. Needed on a "
         "node that has only a part of the checkpoint: where engine.handoff is encoder or global, a node whose only "
         "role is prefill maps the layers up to the bridge and does without the files of the rest."},
    {"model.context", CFG_INT, "tokens", 0, 1 << 24, AT(model.context), .fallback = "0",
     .help = "Longest sequence, prompt and output together. 0: as long as the model allows."},

    {"compute", CFG_GROUP, .help = "How the network is computed on this machine."},
    {"compute.cpu", CFG_ENUM, .values = cpu_values, AT(compute.cpu), .fallback = "auto",
     .help = "CPU path. auto takes the best one that this machine has; the others force one and fail where it is "
             "missing. Results are bit for bit the same within a path, not between paths. The environment variable "
             "WEFT_CPU overrides this key."},
    {"compute.threads", CFG_INT, "threads", 0, 1024, AT(compute.threads), .fallback = "0",
     .help = "Threads of the compute team. 0: one per core that the process may use. Results do not depend on it."},
    {"compute.max_batch_rows", CFG_INT, "rows", 1, 65536, AT(compute.max_batch_rows), .fallback = "512",
     .help = "Most rows (tokens of all sequences together) in one forward pass."},
    {"compute.prefill_chunk", CFG_INT, "tokens", 1, 65536, AT(compute.prefill_chunk), .fallback = "256",
     .help = "Most tokens of one prompt in one forward pass. Results do not depend on it."},

    {"engram", CFG_GROUP, .help = "The tables of rows that the model looks up by its last tokens, where it has any."},
    {"engram.store", CFG_ENUM, .values = engram_values, AT(engram.store), .fallback = "mapped",
     .help =
         "mapped: rows are taken from the mapped checkpoint, and a step waits for the disk where memory does not hold "
         "them. host: rows are read from the checkpoint's files as soon as token ids are known, and engram.cache of "
         "them "
         "are kept in memory. ssd: the same past the system's page cache, keeping only what was read ahead. Results "
         "do not depend on it."},
    {"engram.cache", CFG_SIZE, "B", 1 << 12, INT64_C(1) << 44, AT(engram.cache), .fallback = "1GiB",
     .help = "With engram.store = \"host\": memory for rows."},

    {"replay", CFG_GROUP,
     .help = "Bounded replay: after the encoder layers have seen the whole prompt, the decoder layers run on its tail "
             "only. An approximation that the model was trained for."},
    {"replay.exact", CFG_BOOL, AT(replay.exact), .fallback = "false",
     .help = "Run every layer on every token instead. Slower on long prompts, no approximation."},
    {"replay.rows", CFG_INT, "tokens", 0, 65536, AT(replay.rows), .fallback = "0",
     .help = "Length R of the tail. 0: the sliding window of the model plus replay.rollback. Otherwise at least that "
             "many, so that the window stays full when drafts are rejected."},
    {"replay.rollback", CFG_INT, "tokens", 0, 256, AT(replay.rollback), .fallback = "12",
     .help = "Rows beyond the window that are kept so that rejected drafts can be taken back."},
    {"replay.bridge_window", CFG_ENUM, .values = bridge_values, AT(replay.bridge_window), .fallback = "truncate",
     .help = "What the first decoder layer sees before the tail: nothing (truncate) or its whole window (full)."},

    {"speculation", CFG_GROUP, .help = "Drafting of several tokens that one pass then verifies."},
    {"speculation.mode", CFG_ENUM, .values = speculation_values, AT(speculation.mode), .fallback = "fixed",
     .help =
         "off drafts nothing; fixed drafts and verifies the same number of tokens in every step; dynamic plans each "
         "step from confidences and measured step times, down to no draft at all. The text does not depend on it, "
         "unless acceptance is rejection."},
    {"speculation.draft_length", CFG_INT, "tokens", 0, 32, AT(speculation.draft_length), .fallback = "3",
     .help = "Tokens that are drafted per step and sequence; in dynamic mode at most that many. 0: no speculation. "
             "With less than "
             "the model drafts at once no blocks are logged for weft calibrate."},
    {"speculation.acceptance", CFG_ENUM, .values = acceptance_values, AT(speculation.acceptance), .fallback = "match",
     .help = "When temperature is above 0: match keeps a draft that is the token plain decoding would draw, so that a "
             "seed always gives the same text; rejection keeps more drafts and has the same distribution, but the text "
             "of a seed then depends on which drafts were verified, and so on the load. In dynamic mode requests with "
             "the same seed do not get the same text then."},
    {"speculation.budget", CFG_ENUM, .values = budget_values, AT(speculation.budget), .fallback = "lagged",
     .help = "Dynamic mode: lagged takes the best number of drafts in view of earlier confidences; early_stop takes "
             "drafts by present confidence until one does not pay."},
    {"speculation.min_gain", CFG_DOUBLE, .min = 0, .max = 1, AT(speculation.min_gain), .fallback = "0.005",
     .help = "Dynamic mode: a plan changes only for a gain in expected tokens per second of this share."},
    {"speculation.probe_share", CFG_DOUBLE, .min = 0, .max = 0.2, AT(speculation.probe_share), .fallback = "0.005",
     .help =
         "Dynamic mode: share of time for steps that are planned otherwise than is best, so that changes are noticed: "
         "half for whole blocks (confidences), half for the best plan of another length (times)."},
    {"speculation.group_sync", CFG_BOOL, AT(speculation.group_sync), .fallback = "false",
     .help =
         "Dynamic mode in a deployment: all decode nodes draft and verify as many tokens per request as the first of "
         "them has chosen, for backends whose ranks must run steps of one shape. Who has not heard of it lately "
         "plans for itself."},
    {"speculation.table_file", CFG_TEXT, "file", AT(speculation.table_file), .fallback = "",
     .help = "Dynamic mode: keeps the step times that were measured, for the next start with the same model, machine, "
             "program (by its build id) and no more sequences at a time. Empty: they are measured at every start."},
    {"speculation.measure", CFG_DURATION, "ms", 0, 600000, AT(speculation.measure_us), .fallback = "2s",
     .help = "Dynamic mode: no larger batch is measured after this long; what is missing is extrapolated, and refined "
             "while serving."},

    {"sampling", CFG_GROUP, .help = "Defaults for what a request leaves out."},
    {"sampling.temperature", CFG_DOUBLE, .min = 0, .max = 2, AT(sampling.temperature), .fallback = "1.0",
     .help = "0 always takes the most likely token."},
    {"sampling.top_k", CFG_INT, "tokens", 0, 1 << 24, AT(sampling.top_k), .fallback = "0",
     .help = "Sample among this many most likely tokens. 0: among all."},
    {"sampling.top_p", CFG_DOUBLE, .min = 0, .max = 1, .above_min = true, AT(sampling.top_p), .fallback = "1.0",
     .help = "Sample among the most likely tokens that together have at least this probability."},
    {"sampling.min_p", CFG_DOUBLE, .min = 0, .max = 1, AT(sampling.min_p), .fallback = "0.0",
     .help = "Drop tokens that are less likely than this share of the most likely one."},
    {"sampling.repetition_penalty", CFG_DOUBLE, .min = 1e-6, .max = 10, AT(sampling.repetition_penalty),
     .fallback = "1.0", .help = "Weakens tokens that have occurred, by division or multiplication. 1: off."},
    {"sampling.presence_penalty", CFG_DOUBLE, .min = -2, .max = 2, AT(sampling.presence_penalty), .fallback = "0.0",
     .help = "Subtracted once from tokens that the output already has."},
    {"sampling.frequency_penalty", CFG_DOUBLE, .min = -2, .max = 2, AT(sampling.frequency_penalty), .fallback = "0.0",
     .help = "Subtracted from tokens that the output already has, once per occurrence."},
    {"sampling.max_tokens", CFG_INT, "tokens", 0, 1 << 24, AT(sampling.max_tokens), .fallback = "0",
     .help = "Longest output. 0: to the end of the context."},

    {"limits", CFG_GROUP, .help = "What one client may ask for."},
    {"limits.request_bytes", CFG_SIZE, "B", 1024, 1 << 30, AT(limits.request_bytes), .fallback = "16MiB",
     .help = "Largest request: a chat file, a line of a batch file."},
    {"limits.header_bytes", CFG_SIZE, "B", 1024, 1 << 20, AT(limits.header_bytes), .fallback = "32KiB",
     .help = "Longest request line and headers."},
    {"limits.requests", CFG_INT, "requests", 1, 65536, AT(limits.requests), .fallback = "1024",
     .help = "Generations at a time, waiting ones included. One more is answered with 429."},
    {"limits.connections", CFG_INT, "connections", 1, 65536, AT(limits.connections), .fallback = "2048",
     .help = "Open client connections. One more is answered with 503 and closed."},
    {"limits.unread_bytes", CFG_SIZE, "B", 4096, 1 << 30, AT(limits.unread_bytes), .fallback = "1MiB",
     .help = "A client that is this much behind its stream is cut off. Bounds the memory that slow readers take."},
    {"limits.unread_time", CFG_DURATION, "ms", 10, 3600000, AT(limits.unread_us), .fallback = "30s",
     .help = "A client that takes not one byte of what waits for it for this long is cut off."},
    {"limits.keepalive", CFG_DURATION, "ms", 100, 3600000, AT(limits.keepalive_us), .fallback = "10s",
     .help = "A stream that has nothing to say sends a comment this often."},
    {"limits.drain", CFG_DURATION, "ms", 0, 3600000, AT(limits.drain_us), .fallback = "30s",
     .help = "After SIGTERM running requests may go on for this long. A node of a deployment "
             "takes 0.5 s at least, until the others know."},
    {"limits.stuck", CFG_DURATION, "ms", 100, 3600000, AT(limits.stuck_us), .fallback = "30s",
     .help =
         "The server is no longer ready when work has made no progress for this long. A gateway takes parts of other "
         "nodes that report nothing for so long, or for 5 s if that is more, for lost."},
    {"limits.retry", CFG_DURATION, "ms", 1, 3600000, AT(limits.retry_us), .fallback = "10s",
     .help = "A request whose place in the engine has ended or failed goes on at another one. When that fails again "
             "and again "
             "it is given up after this long, counted from the first failure since its last token, and not before it "
             "was tried three times. Longer than a node needs to start again, if clients may wait so long."},

    {"kv", CFG_GROUP, .help = "Memory for the key-value rows of sequences and of cached prompts."},
    {"kv.memory", CFG_SIZE, "B", 1 << 20, INT64_C(1) << 44, AT(kv.memory), .fallback = "1GiB",
     .help =
         "Size of the pages that sequences compute on. Finished blocks stay there as prefix cache until the room is "
         "wanted."},
    {"kv.snapshots", CFG_SIZE, "B", 0, INT64_C(1) << 44, AT(kv.snapshots), .fallback = "256MiB",
     .help =
         "Memory for snapshots: what a later prompt with the same beginning needs to go on exactly. 0: none; hits are "
         "then replayed."},
    {"kv.block_tokens", CFG_INT, "tokens", 2, 65536, AT(kv.block_tokens), .fallback = "256",
     .help = "Tokens of one page and of one unit of the prefix cache. Even."},
    {"kv.snapshot_blocks", CFG_INT, "blocks", 0, 1 << 20, AT(kv.snapshot_blocks), .fallback = "16",
     .help = "A snapshot is kept every so many blocks of a prompt, so that one that only begins like it goes on "
             "exactly. Those at the end of prompts and outputs are kept anyway. 0: only those."},
    {"kv.snapshot_ttl", CFG_DURATION, "min", 0, 525600, AT(kv.snapshot_ttl_us), .fallback = "15min",
     .help =
         "A snapshot that no prompt has used for so long is given back; its blocks stay. 0: only for want of room."},
    {"kv.host", CFG_SIZE, "B", 0, INT64_C(1) << 44, AT(kv.host), .fallback = "0",
     .help = "Size of the host tier: memory for finished blocks whose page was wanted for something else. 0: none."},
    {"kv.write_behind", CFG_SIZE, "B", 1 << 16, INT64_C(1) << 40, AT(kv.write_behind), .fallback = "64MiB",
     .help = "Most bytes of finished blocks that wait for the tiers below. Beyond that a block is not kept there; no "
             "step ever waits."},
    {"kv.canary", CFG_BOOL, AT(kv.canary), .fallback = "false",
     .help =
         "For finding defects: finished blocks and snapshots in kv.memory have a checksum, verified whenever they are "
         "found; one that was written to is dropped and counted as an error of kind checksum of the device tier."},
    {"kv.ttl", CFG_DURATION, "h", 0, 31536000, AT(kv.ttl_us), .fallback = "72h",
     .help = "Blocks that were stored in a tier, or brought into it, longer ago than this are not used from there any "
             "more, and their places are free. 0: no limit."},
    {"kv.read_timeout", CFG_DURATION, "ms", 1, 600000, AT(kv.read_timeout_us), .fallback = "5s",
     .help = "A prompt waits this long for blocks from the tiers below; what has not come then is computed."},
    {"kv.hedge", CFG_DURATION, "ms", 0, 600000, AT(kv.hedge_us), .fallback = "0",
     .help =
         "A read that one of the tiers below the host has not finished after this long, and not after twice the time "
         "that it should take by what was measured, is also asked of the next of these tiers; what comes first is "
         "used. "
         "One that fails is asked of the next at once. Needs two of these tiers, and costs a copy of what is "
         "read and memory of at most kv.write_behind. 0: never."},
    {"kv.ssd", CFG_GROUP, .help = "The ssd tier: finished blocks in files, which a later process finds again."},
    {"kv.ssd.path", CFG_TEXT, "folder", AT(kv.ssd.path), .fallback = "",
     .help = "An existing folder that no other process uses. Empty: no ssd tier."},
    {"kv.ssd.size", CFG_SIZE, "B", 1 << 20, INT64_C(1) << 50, AT(kv.ssd.size), .fallback = "16GiB",
     .help = "Room for blocks. The files take it at the first start; another size takes effect at the next one."},
    {"kv.ssd.reserve", CFG_SIZE, "B", 0, INT64_C(1) << 50, AT(kv.ssd.reserve), .fallback = "1GiB",
     .help = "What the files leave free in their file system."},
    {"kv.ssd.write_per_day", CFG_SIZE, "B", 0, INT64_C(1) << 55, AT(kv.ssd.write_per_day), .fallback = "0",
     .help = "Most bytes written per day, against wear. 0: no limit."},
    {"kv.ssd.direct", CFG_BOOL, AT(kv.ssd.direct), .fallback = "true",
     .help = "Read and write past the page cache. Off only for file systems that cannot."},
    {"kv.shared", CFG_GROUP,
     .help = "The shared tier: finished blocks in a folder that the processes of many nodes read and write at the same "
             "time, on any file system that they share."},
    {"kv.shared.path", CFG_TEXT, "folder", AT(kv.shared.path), .fallback = "",
     .help = "An existing folder, the same for all. Empty: no shared tier."},
    {"kv.shared.size", CFG_SIZE, "B", 1 << 20, INT64_C(1) << 55, AT(kv.shared.size), .fallback = "64GiB",
     .help = "Room for the blocks of all nodes together."},
    {"kv.shared.segment", CFG_SIZE, "B", 4096, INT64_C(1) << 36, AT(kv.shared.segment), .fallback = "64MiB",
     .help = "A file is finished, and its blocks become visible to all, when it has this size."},
    {"kv.shared.seal", CFG_DURATION, "ms", 1, 3600000, AT(kv.shared.seal_us), .fallback = "2s",
     .help = "A file that is not full is finished after this time."},
    {"kv.shared.poll", CFG_DURATION, "ms", 1, 3600000, AT(kv.shared.poll_us), .fallback = "1s",
     .help = "The folder is looked at for new files this often."},
    {"kv.shared.orphan", CFG_DURATION, "s", 1, 31536000, AT(kv.shared.orphan_us), .fallback = "10min",
     .help =
         "Files that others have not finished after so long are removed, and so are the oldest ones of a folder that "
         "is too full when their node has written nothing for so long."},
    {"kv.shared.removals", CFG_DOUBLE, "files per second", .min = 0.001, .max = 1e6, AT(kv.shared.removals),
     .fallback = "8.0", .help = "Most removals of files, so that a distributed file system is not flooded."},
    {"kv.shared.direct", CFG_BOOL, AT(kv.shared.direct), .fallback = "false",
     .help = "Read and write past the page cache. Not every shared file system can."},
    {"kv.shared.usrbio", CFG_TEXT, "library", AT(kv.shared.usrbio), .fallback = "",
     .help = "On 3FS: its client library, such as libhf3fs_api_shared.so, through whose rings blocks are then read and "
             "written. Empty: ordinary files, on any file system."},
    {"kv.nodes", CFG_GROUP,
     .help =
         "Nodes with the role kv: processes that keep finished blocks in memory and files for the prefill and decode "
         "nodes of the deployment. Each block belongs to one of them. A file that gives any of these keys makes nodes "
         "that compute ready for kv nodes that come later."},
    {"kv.nodes.memory", CFG_SIZE, "B", 1 << 20, INT64_C(1) << 44, AT(kv.nodes.memory), .fallback = "1GiB",
     .help = "Size of a kv node's host tier."},
    {"kv.nodes.path", CFG_TEXT, "folder", AT(kv.nodes.path), .fallback = "",
     .help = "A kv node keeps blocks in files of its ssd tier in the folder of its name below this one; it makes that "
             "folder. Empty: in memory only."},
    {"kv.nodes.size", CFG_SIZE, "B", 1 << 20, INT64_C(1) << 50, AT(kv.nodes.size), .fallback = "16GiB",
     .help = "Room for blocks in a kv node's ssd tier. kv.ssd.reserve, .write_per_day and .direct hold for it too."},
    {"kv.nodes.buffer", CFG_SIZE, "B", 1 << 20, INT64_C(1) << 40, AT(kv.nodes.buffer), .fallback = "64MiB",
     .help = "A kv node's memory for blocks that are being read, and as much for blocks that are being stored. Reads "
             "beyond that wait, stores beyond that are refused. And that of a node that reads, for what arrives."},
    {"kv.nodes.find_timeout", CFG_DURATION, "ms", 1, 60000, AT(kv.nodes.find_us), .fallback = "50ms",
     .help = "A prompt waits this long for what kv nodes say they have. A node that is later is left out for a while."},
    {"kv.nodes.quiet_timeout", CFG_DURATION, "ms", 1, 600000, AT(kv.nodes.quiet_us), .fallback = "1s",
     .help = "A read or a store that hears nothing from a kv node for this long is given up, and the node is left out "
             "for a while."},

    {"engine", CFG_GROUP, .help = "How work shares this process."},
    {"engine.decode_streams", CFG_INT, "sequences", 1, 4096, AT(engine.decode_streams), .fallback = "32",
     .help = "Sequences that generate at a time."},
    {"engine.prefill_streams", CFG_INT, "prompts", 1, 1024, AT(engine.prefill_streams), .fallback = "4",
     .help = "Prompts that are computed at a time; others wait in line and hold nothing."},
    {"engine.prefill_share", CFG_DURATION, "ms", 0, 60000, AT(engine.prefill_share_us), .fallback = "5ms",
     .help =
         "While prompts wait: time they get between two decode steps. Bounds the gap between the tokens of a running "
         "stream from above, and the speed of prompts beside running streams from below."},
    {"engine.expert_shards", CFG_INT, "actors", 1, 256, AT(engine.expert_shards), .fallback = "2",
     .help = "Expert shards in this process, each an actor with an equal part of the experts. Results do not depend on "
             "it."},
    {"engine.prefill_actors", CFG_INT, "actors", 1, 64, AT(engine.prefill_actors), .fallback = "1",
     .help = "Prefill actors in this process, each with engine.prefill_streams. One uses every core already; more are "
             "for tests, and so that one that ends leaves another."},
    {"engine.decode_actors", CFG_INT, "actors", 1, 64, AT(engine.decode_actors), .fallback = "1",
     .help = "Decode actors in this process, each with engine.decode_streams."},
    {"engine.routing", CFG_ENUM, .values = routing_values, AT(engine.routing), .fallback = "auto",
     .help = "What decides where a prompt is computed: load alone; prefix, which weighs tokens that a Prefill has "
             "computed before against its load; auto, the time until it would be computed there, by the costs that "
             "Prefill actors measure: their queues, tokens to compute, and, where all read a common tier (kv.shared, "
             "kv nodes), tokens to read that another has computed."},
    {"engine.handoff", CFG_ENUM, .values = handoff_values, AT(engine.handoff), .fallback = "full",
     .help = "What a prefill node sends to a decode node beside the rows of a prompt. full: all of its state. encoder: "
             "the state of the layers below the cut; the decode node computes the others over the last rows, with the "
             "same results. global: nothing; the decode node goes on as behind a prefix hit, an approximation. Prompts "
             "in exact mode are always sent in full."},
    {"engine.ticket_lease", CFG_DURATION, "ms", 10, 3600000, AT(engine.ticket_lease_us), .fallback = "30s",
     .help = "A hand-off between nodes that makes no progress for this long is given up; the request goes on at "
             "another place. Longer than a prefill node needs for one chunk."},

    {"experts", CFG_GROUP, .help = "Experts on shards: how they are reached, and how they are spread."},
    {"experts.wave_rows", CFG_INT, "rows", 1, 65535, AT(experts.wave_rows), .fallback = "512",
     .help = "Most rows in one message to a shard; larger batches go in waves. Results do not depend on it."},
    {"experts.slot_rows", CFG_INT, "rows", 0, 65535, AT(experts.slot_rows), .fallback = "64",
     .help =
         "Rows that a slot holds: between nodes, dispatches and results are written into slots of the other's memory, "
         "larger waves are cut to this. The same on all nodes. 0: messages. Results do not depend on it."},
    {"experts.deadline", CFG_DURATION, "ms", 1, 3600000, AT(experts.deadline_us), .fallback = "5s",
     .help = "A shard that has not answered by then is left out for a while, and the step begins again without it."},
    {"experts.lost", CFG_ENUM, .values = lost_values, AT(experts.lost), .fallback = "takeover",
     .help = "Experts whose shards are all gone: another shard reads them from the checkpoint at once (takeover), or "
             "requests wait until one of the shards is back or others have loaded them (wait)."},
    {"experts.patience", CFG_DURATION, "ms", 0, 3600000, AT(experts.patience_us), .fallback = "30s",
     .help = "When no shard can compute an expert, requests wait this long and then fail."},
    {"experts.spare", CFG_INT, "experts", 0, 1024, AT(experts.spare), .fallback = "0",
     .help = "Experts that a shard holds per layer beyond its equal part: room for second copies of busy ones."},
    {"experts.balance", CFG_DURATION, "ms", 0, 86400000, AT(experts.balance_us), .fallback = "30s",
     .help = "Time between two looks at how evenly the shards are used; experts move when it pays. 0: never. Without "
             "effect in a deployment of one process."},
    {"experts.gain", CFG_DOUBLE, .min = 0.01, .max = 10, AT(experts.gain), .fallback = "0.1",
     .help = "Experts move when the busiest shard gets less busy by more than this part of the mean."},

    {"transport", CFG_GROUP, .help = "How bytes cross between the processes of a deployment."},
    {"transport.provider", CFG_ENUM, .values = provider_values, AT(transport.provider), .fallback = "tcp",
     .help = "tcp runs everywhere; rdma needs adapters and libraries, and where they are missing the node says so and "
             "does not start: nothing falls back to tcp. The same for all nodes. `weft check` explains what is here."},
    {"transport.rdma", CFG_GROUP, .help = "RDMA devices and how they are used."},
    {"transport.rdma.devices", CFG_TEXT, AT(transport.rdma.devices), .fallback = "",
     .help = "Empty: the device that has the address of the node's host, alone. auto: with it every usable one that is "
             "as near. Or names, separated by commas, the one with the address first: large transfers are striped over "
             "them, and the first of one node talks to the first of another, and so on."},
    {"transport.rdma.class_control", CFG_INT, "", 0, 255, AT(transport.rdma.class_control), .fallback = "0",
     .help = "Traffic class of messages, the byte in the IP header (DSCP times 4). 0: the network's default."},
    {"transport.rdma.class_kv", CFG_INT, "", 0, 255, AT(transport.rdma.class_kv), .fallback = "0",
     .help = "Traffic class of key-value rows."},
    {"transport.rdma.class_expert", CFG_INT, "", 0, 255, AT(transport.rdma.class_expert), .fallback = "0",
     .help = "Traffic class of the expert exchange. One of its own keeps it from waiting behind key-value rows."},
    {"transport.rdma.spin", CFG_DURATION, "us", 0, 1000000, AT(transport.rdma.spin_us), .fallback = "50us",
     .help = "Longest time that completion queues are polled before the io worker sleeps; it adapts below that, to "
             "nothing when it does not pay. 0: never. Never either when the node has more workers (four) than CPUs."},
    {"transport.rdma.register_max", CFG_SIZE, "B", 0, INT64_C(1) << 50, AT(transport.rdma.register_max),
     .fallback = "0",
     .help = "Most bytes that are registered at once; more is registered in pieces. 0: what the device allows."},
    {"transport.rdma.stripe_min", CFG_SIZE, "B", 1, INT64_C(1) << 40, AT(transport.rdma.stripe_min),
     .fallback = "128KiB",
     .help = "With several devices: transfers of at least so many bytes are striped over them, smaller ones take the "
             "first. Less than 4 KiB per device is never striped."},

    {"cluster", CFG_GROUP, .help = "How the nodes of a deployment reach each other. Not used by one node alone."},
    {"cluster.secret_file", CFG_TEXT, "file", AT(cluster.secret_file), .fallback = "",
     .help =
         "File with the secret that all nodes share, 16 bytes or more. Nodes prove to each other that they know it; "
         "what they send is not encrypted."},
    {"cluster.state", CFG_TEXT, "folder", AT(cluster.state), .fallback = "",
     .help = "Folder in which a node keeps its boot epoch, so that a restarted one is told from the one before."},
    {"cluster.connect", CFG_DURATION, "ms", 10, 600000, AT(cluster.connect_us), .fallback = "5s",
     .help = "Connecting and the handshake may take this long."},
    {"cluster.ping", CFG_DURATION, "ms", 10, 600000, AT(cluster.ping_us), .fallback = "1s",
     .help = "A connection over which nothing came for this long is asked whether it lives."},
    {"cluster.silence", CFG_DURATION, "ms", 10, 600000, AT(cluster.silence_us), .fallback = "5s",
     .help = "A node that does not answer for this long is lost. At least cluster.ping."},
    {"cluster.retry", CFG_DURATION, "ms", 10, 600000, AT(cluster.retry_us), .fallback = "2s",
     .help = "Longest pause between two tries to reach a node; the first is 50 ms, then they double."},

    {"security", CFG_GROUP,
     .help = "Who may use the server, and what is encrypted. Nothing is, without a certificate."},
    {"security.keys_file", CFG_TEXT, "file", AT(security.keys_file), .fallback = "",
     .help =
         "API keys, one per line: KEY [NAME [REQUESTS AT A TIME]]. Clients send one as `Authorization: Bearer KEY` or "
         "`x-api-key: KEY`. SIGHUP reads the file again. Empty: no key is asked for."},
    {"security.tls_cert", CFG_TEXT, "file", AT(security.tls_cert), .fallback = "",
     .help =
         "Certificate chain in PEM form. With it clients are served over TLS only. SIGHUP reads it and its key again."},
    {"security.tls_key", CFG_TEXT, "file", AT(security.tls_key), .fallback = "",
     .help = "Private key of that certificate in PEM form, without a passphrase."},
    {"security.debug", CFG_BOOL, AT(security.debug), .fallback = "false",
     .help = "Offer /debug to clients on this machine: what actors do, and time stamps in streams that ask for them."},

    {"log", CFG_GROUP, .help = "What is said, and where."},
    {"log.file", CFG_TEXT, "file", AT(log.file), .fallback = "",
     .help = "File that records are appended to; SIGHUP opens it again, for rotation. Empty: standard error."},
    {"log.trace", CFG_TEXT, "file", AT(log.trace), .fallback = "",
     .help =
         "Arrivals, lengths and hashed names of prompt blocks of all requests, no text, for `weft bench kv --trace`. "
         "Empty: none."},
    {"log.level", CFG_ENUM, .values = level_values, AT(log.level), .fallback = "info",
     .help = "Messages of this importance and above."},
    {"log.format", CFG_ENUM, .values = format_values, AT(log.format), .fallback = "text",
     .help = "text for people, json for machines: one object per line."},
    {"log.progress_after", CFG_DURATION, "ms", 0, 3600000, AT(log.progress_after_us), .fallback = "1s",
     .help = "A progress display appears on a terminal when something takes longer than this."},

    {"nodes", CFG_LIST, .min = 1, .max = CFG_NODES_MAX, .offset = offsetof(struct cfg_config, nodes),
     .size = sizeof(struct cfg_node), .count_offset = offsetof(struct cfg_config, n_nodes),
     .help = "The processes of a deployment. Without this list there is one node with the name \"local\" and every "
             "role."},
    {"nodes[].name", CFG_TEXT, IN_NODE(name), .required = true,
     .help = "Name of the node; no other node has it. Letters, digits, '-', '_' and '.'; files are named after "
             "it."},
    {"nodes[].roles", CFG_SET, .values = role_values, IN_NODE(roles), .required = true,
     .help = "What the node does. Every role but kv must be taken by at least one node."},
    {"nodes[].host", CFG_TEXT, IN_NODE(host), .fallback = "127.0.0.1",
     .help = "Name or address under which the other nodes reach it."},
    {"nodes[].port", CFG_INT, "port", 0, 65535, IN_NODE(port), .fallback = "0",
     .help = "Port at host where it listens for the other nodes. Needed when there are several nodes."},
    {"nodes[].experts", CFG_TEXT, IN_NODE(experts), .fallback = "",
     .help =
         "Prefill, decode and expert nodes with the same name here belong together: shards of this group serve these "
         "nodes. So prefill and decode can have expert groups of different sizes."},
    {"nodes[].listen", CFG_ADDRESS, "HOST:PORT", IN_NODE(listen), .fallback = "",
     .help = "Where a gateway accepts clients. Needed with the role gateway, and only with it. An IPv6 address stands "
             "in brackets."},
    {"nodes[].metrics", CFG_ADDRESS, "HOST:PORT", IN_NODE(metrics), .fallback = "",
     .help =
         "Where a node without a gateway answers /metrics, /health/live, /health/ready and /version. Empty: nowhere. "
         "API keys and the certificate hold for it as for a gateway, which has all of that at listen."},
};
const int cfg_n_keys = (int)(sizeof cfg_keys / sizeof cfg_keys[0]);

_Static_assert(sizeof cfg_keys / sizeof cfg_keys[0] <= CFG_KEYS_MAX, "raise CFG_KEYS_MAX");
_Static_assert(CFG_ROLE_KV == 1u << (sizeof role_values / sizeof role_values[0] - 2), "roles and their names differ");
_Static_assert(CFG_CPU_AVX512 == sizeof cpu_values / sizeof cpu_values[0] - 2, "CPU paths and their names differ");

const char *cfg_type_name(enum cfg_type type)
{
    static const char *const names[] = {
        [CFG_GROUP] = "group",     [CFG_LIST] = "list of groups", [CFG_BOOL] = "true or false", [CFG_INT] = "integer",
        [CFG_DOUBLE] = "number",   [CFG_SIZE] = "size",           [CFG_DURATION] = "duration",  [CFG_TEXT] = "text",
        [CFG_ADDRESS] = "address", [CFG_ENUM] = "choice",         [CFG_SET] = "set of choices",
    };
    return names[type];
}

int cfg_key_find(const char *path)
{
    for (int i = 0; i < cfg_n_keys; i++)
        if (strcmp(cfg_keys[i].path, path) == 0)
            return i;
    return -1;
}

bool cfg_key_below(int i, const char *prefix, const char **name)
{
    const char *path = cfg_keys[i].path;
    size_t n = strlen(prefix);
    if (n > 0) {
        if (strncmp(path, prefix, n) != 0 || path[n] != '.')
            return false;
        path += n + 1;
    }
    if (strpbrk(path, ".["))
        return false;
    *name = path;
    return true;
}

void cfg_key_set_default(int i, void *base)
{
    const struct cfg_key *k = &cfg_keys[i];
    char *field = (char *)base + k->offset;
    const char *text = k->fallback;
    if (k->type == CFG_GROUP || k->type == CFG_LIST)
        return;
    if (!text) {
        memset(field, 0, k->size);
        return;
    }
    switch (k->type) {
    case CFG_BOOL:
        *(bool *)field = strcmp(text, "true") == 0;
        break;
    case CFG_INT:
        *(int *)field = (int)strtol(text, NULL, 10);
        break;
    case CFG_DOUBLE:
        *(double *)field = strtod(text, NULL);
        break;
    case CFG_SIZE:
        cfg_size_parse(text, (int64_t *)field);
        break;
    case CFG_DURATION:
        cfg_duration_parse(text, (int64_t *)field);
        break;
    case CFG_ENUM:
        for (int v = 0; k->values[v]; v++)
            if (strcmp(k->values[v], text) == 0)
                *(int *)field = v;
        break;
    case CFG_TEXT:
    case CFG_ADDRESS:
        memset(field, 0, k->size);
        memcpy(field, text, strlen(text) + 1);
        break;
    case CFG_GROUP:
    case CFG_LIST:
    case CFG_SET:
        break;
    }
}

static void join(const char *const *values, char *out, size_t size)
{
    size_t len = 0;
    for (int i = 0; values[i] && len < size; i++)
        len += (size_t)snprintf(out + len, size - len, "%s%s", i ? ", " : "", values[i]);
}

static void limit_text(const struct cfg_key *k, double value, char out[CFG_UNIT_TEXT_MAX])
{
    if (k->type == CFG_SIZE)
        cfg_size_format((int64_t)value * cfg_size_unit(k->unit), out);
    else if (k->type == CFG_DURATION)
        cfg_duration_format((int64_t)value * cfg_duration_unit(k->unit), out);
    else
        snprintf(out, CFG_UNIT_TEXT_MAX, "%.10g", value);
}

void cfg_key_range(int i, char *out, size_t size)
{
    const struct cfg_key *k = &cfg_keys[i];
    char lo[CFG_UNIT_TEXT_MAX], hi[CFG_UNIT_TEXT_MAX];
    out[0] = 0;
    if (k->type == CFG_ENUM || k->type == CFG_SET) {
        int n = snprintf(out, size, k->type == CFG_ENUM ? "one of " : "any of ");
        join(k->values, out + n, size - (size_t)n);
    } else if (k->type == CFG_INT || k->type == CFG_DOUBLE || k->type == CFG_SIZE || k->type == CFG_DURATION) {
        limit_text(k, k->min, lo);
        limit_text(k, k->max, hi);
        snprintf(out, size, k->above_min ? "above %s, up to %s" : "%s to %s", lo, hi);
    } else if (k->type == CFG_LIST) {
        snprintf(out, size, "up to %.0f", k->max);
    }
}

/* Shortest of the forms that read back to the same number; always with a point, so that it stays a number. */
static void print_double(double v, char *out, size_t size)
{
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(out, size, "%.*g", digits, v);
        if (strtod(out, NULL) == v)
            break;
    }
    if (!strpbrk(out, ".e") && strlen(out) + 3 <= size)
        strcat(out, ".0");
}

static void print_text(const char *text, char *out, size_t size)
{
    size_t len = 0;
    out[len++] = '"';
    for (; *text && len + 4 < size; text++) {
        if (*text == '"' || *text == '\\')
            out[len++] = '\\';
        out[len++] = *text;
    }
    out[len++] = '"';
    out[len] = 0;
}

void cfg_key_print(int i, const void *base, char *out, size_t size)
{
    const struct cfg_key *k = &cfg_keys[i];
    const char *field = (const char *)base + k->offset;
    char text[CFG_UNIT_TEXT_MAX];
    size_t len = 0;
    out[0] = 0;
    switch (k->type) {
    case CFG_BOOL:
        snprintf(out, size, "%s", *(const bool *)field ? "true" : "false");
        break;
    case CFG_INT:
        snprintf(out, size, "%d", *(const int *)field);
        break;
    case CFG_DOUBLE:
        print_double(*(const double *)field, out, size);
        break;
    case CFG_SIZE:
        cfg_size_format(*(const int64_t *)field, text);
        snprintf(out, size, "\"%s\"", text);
        break;
    case CFG_DURATION:
        cfg_duration_format(*(const int64_t *)field, text);
        snprintf(out, size, "\"%s\"", text);
        break;
    case CFG_TEXT:
    case CFG_ADDRESS:
        print_text(field, out, size);
        break;
    case CFG_ENUM:
        snprintf(out, size, "\"%s\"", k->values[*(const int *)field]);
        break;
    case CFG_SET:
        len = (size_t)snprintf(out, size, "[");
        for (int v = 0; k->values[v] && len < size; v++)
            if (*(const unsigned *)field >> v & 1)
                len += (size_t)snprintf(out + len, size - len, "%s\"%s\"", len > 1 ? ", " : "", k->values[v]);
        if (len < size)
            snprintf(out + len, size - len, "]");
        break;
    case CFG_GROUP:
    case CFG_LIST:
        break;
    }
}

void cfg_roles_text(unsigned roles, char *out, size_t size)
{
    size_t len = 0;
    out[0] = 0;
    for (int r = 0; role_values[r] && len < size; r++)
        if (roles >> r & 1)
            len += (size_t)snprintf(out + len, size - len, "%s%s", len ? "," : "", role_values[r]);
}
