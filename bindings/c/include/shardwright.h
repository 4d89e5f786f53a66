/* The C interface of Shardwright. cbindgen writes this file from `bindings/c/src`. Do not change it by hand:
   `SHARDWRIGHT_WRITE_HEADER=1 cargo test -p shardwright-bindings-c header` writes it again.

   Handles. A handle is a number in the form of a pointer. It is never reused, so a handle that is NULL, closed or of
   another type is an error with a status, and never undefined behaviour. Every handle is closed with its function.
   Closing works from any thread and returns at once.

   Errors. Functions return a status. `sw_last_error` has the message of the last failure on the thread. If a function
   fails, it sets the handles that it returns to NULL.

   Structs. Set `size` to the size of the struct, and every field that is not used to 0, for example with
   `sw_open_options options = {.size = sizeof options}`. A later version of the library may add fields at the end.
   Elements of an array are `size` of its first element apart.

   Texts. Texts are UTF-8. They end with a 0 byte, unless a field has their length. Paths are bytes on Unix, and UTF-8
   elsewhere. Pointers must be valid for reading, and the library does not keep them after the call. Lists of texts
   end with NULL, and a NULL list is empty.

   Threads. Calls block their thread. A session does one thing at a time: a call while another one runs returns
   `SW_BUSY`. Callbacks run on the thread of the call. They must return by themselves: an exception of C++ that leaves
   a callback ends the process, and `longjmp` out of one is undefined. They may call any function of this library.

   The process must not call `fork` without `exec` while a model is open. */

#ifndef SHARDWRIGHT_H
#define SHARDWRIGHT_H

#include <stddef.h>
#include <stdint.h>

// Version that this header belongs to: 1,000,000 times the major, 1,000 times the minor version,
// plus the patch.
#define SW_VERSION 1000

// Cancels calls without a session, such as opening a model, from any thread.
typedef struct sw_cancel sw_cancel;

// A loaded model.
typedef struct sw_model sw_model;

// A reply in progress.
typedef struct sw_reply sw_reply;

// A text, numbers or tokens that a function returned.
typedef struct sw_result sw_result;

// A conversation or a text in progress, with its own KV cache.
//
// A session has at most one reply in progress. A function that changes the conversation ends it,
// as `sw_reply_close` does.
typedef struct sw_session sw_session;

// Outcome of a call.
typedef int32_t sw_status;

// Memory use of a model and its sessions, in bytes. Memory of drivers is unknown.
typedef struct sw_memory {
    // Size of this struct.
    size_t size;
    // Artefacts of the text's chain.
    uint64_t weights;
    // Its gathered tables, which are mapped and not counted.
    uint64_t tables;
    // Each session.
    uint64_t session;
    // The budget in use, by all chains and sessions. 0 for a checkpoint.
    uint64_t used;
    // The budget. 0 if there is none.
    uint64_t budget;
} sw_memory;

// Options to compute a sentence vector.
typedef struct sw_embed_options {
    // Size of this struct.
    size_t size;
    // Name of a prompt of the model, such as "query". NULL for its default prompt, "" for no
    // prompt.
    const char *prompt_name;
    // Number of leading values to keep. 0 for all.
    uint32_t dimensions;
    // 0.
    uint32_t reserved;
    // Cancels the call from any thread.
    const struct sw_cancel *cancel;
} sw_embed_options;

// Importance of a notice.
typedef int32_t sw_notice_kind;

// When a notice came up.
typedef int32_t sw_notice_stage;

// Receives a notice, one sentence. The text is valid during the call.
typedef void (*sw_notice_fn)(void *user, sw_notice_kind kind, sw_notice_stage stage, const char *text);

// Receives the progress of a call, 0 to 1000, and the current stage, which is valid during the
// callback. Returns 0 to continue, and any other number to stop with `SW_CANCELLED`.
typedef int32_t (*sw_progress_fn)(void *user, uint32_t per_mille, const char *stage);

// Handling of files without a signature of a trusted key.
typedef int32_t sw_signatures;

// Which chains of a bundle may run if the first one cannot.
typedef int32_t sw_fallback;

// Which work of shims runs in a separate process.
typedef int32_t sw_isolation;

// Options to open a model. 0 and NULL are the defaults.
typedef struct sw_open_options {
    // Size of this struct.
    size_t size;
    // Receives the progress on the thread of the call.
    sw_progress_fn progress;
    // First argument of `progress`.
    void *progress_user;
    // Cancels the call from any thread.
    const struct sw_cancel *cancel;
    // Most bytes of the model and its sessions together. 0 for no limit.
    uint64_t memory_budget;
    // Number of threads of the CPU engine. 0 for the number of cores.
    uint32_t threads;
    // Context capacity of a checkpoint in tokens. 0 for the default. The context of a bundle is
    // fixed.
    uint32_t context;
    // Whether every fallback, and every part of the model without effect, is an error.
    int32_t strict;
    // Whether every byte of a bundle is verified before any of it is used.
    int32_t verify_all;
    // Whether no proofs of verification are stored.
    int32_t no_proofs;
    // A `SW_SIGNATURES_` constant.
    sw_signatures signatures;
    // A `SW_FALLBACK_` constant.
    sw_fallback fallback;
    // A `SW_ISOLATION_` constant.
    sw_isolation isolation;
    // Public keys that are trusted, in hexadecimal.
    const char *const *trust_keys;
    // Paths of lists of revoked keys and releases.
    const char *const *revocations;
    // Name that a trusted key must have signed the bundle under.
    const char *expected_name;
    // Name of the chip to use instead of the one that shims find. For a checkpoint, the chip to
    // plan for.
    const char *chip;
    // Name of the shim that supports the chip.
    const char *chip_shim;
    // Facts of the chip that its shim reads, as `name=value`.
    const char *const *chip_facts;
    // Flags of shims, as `name=value`.
    const char *const *flags;
    // Names of chains for `SW_FALLBACK_ONLY`.
    const char *const *fallback_chains;
    // Directory for proofs of verification, which only this user can write. Default: in the cache
    // directory of the user.
    const char *proofs_directory;
    // Directories of shims, searched before the standard ones.
    const char *const *shim_directories;
    // Paths of single shims.
    const char *const *shim_libraries;
    // Texts of the manifests of `shim_libraries`, as many and in the same order.
    const char *const *shim_manifests;
    // Directories of planners, searched before the standard ones.
    const char *const *planner_directories;
    // Directories of profiles, searched before the standard ones.
    const char *const *profile_directories;
} sw_open_options;

// Kind of an event.
typedef int32_t sw_event_kind;

// Reason why a reply ended.
typedef int32_t sw_end_reason;

// An event of a reply. Its texts are valid until the next call with the reply.
typedef struct sw_event {
    // Size of this struct.
    size_t size;
    // A `SW_EVENT_` constant.
    sw_event_kind kind;
    // A token id.
    uint32_t token;
    // A `SW_END_` constant.
    sw_end_reason reason;
    // Number of a call in the reply.
    uint32_t index;
    // A text with a 0 byte at its end, or NULL.
    const char *text;
    // Length of `text`, without the 0 byte.
    size_t text_bytes;
    // Id of a call, or NULL.
    const char *id;
    // Name of a tool or of a draft, or NULL.
    const char *name;
} sw_event;

// Receives an event, which is valid during the callback. Returns 0 to continue, and any other
// number to end the reply.
typedef int32_t (*sw_event_fn)(void *user, const struct sw_event *event);

// Counts and times of a reply.
typedef struct sw_statistics {
    // Size of this struct.
    size_t size;
    // Tokens of the prompt, including the conversation so far.
    uint64_t prompt_tokens;
    // Tokens of the prompt whose states already existed.
    uint64_t reused_tokens;
    // Tokens of the prompt that were run.
    uint64_t run_tokens;
    // Tokens that were run again, because their states were released or lost.
    uint64_t recomputed_tokens;
    // Generated tokens, including a stop token.
    uint64_t generated_tokens;
    // Generated tokens of thoughts.
    uint64_t thought_tokens;
    // Steps that generated tokens.
    uint64_t steps;
    // Drafted tokens that were verified.
    uint64_t drafted_tokens;
    // Drafted tokens that were accepted.
    uint64_t accepted_tokens;
    // Time to the first token, in microseconds.
    uint64_t first_token_microseconds;
    // Time to run the prompt, in microseconds.
    uint64_t prompt_microseconds;
    // Time from the first token to the last, in microseconds.
    uint64_t decode_microseconds;
    // Whether the reply ended before it matched its grammar.
    int32_t incomplete;
    // 0.
    int32_t reserved;
} sw_statistics;

// Fields of `sw_reply_settings` that are set: `SW_SET_` constants, added.
typedef uint64_t sw_set;

// Changes to the settings of replies. A new session has the settings that the model recommends.
typedef struct sw_reply_settings {
    // Size of this struct.
    size_t size;
    // The fields that are set. Other fields are ignored, except `stop`.
    sw_set set;
    // Most tokens of a reply, including thoughts.
    uint64_t max_tokens;
    // Most tokens of thoughts.
    uint64_t max_thought_tokens;
    // Seed of the random numbers.
    uint64_t seed;
    // Whether to sample at random.
    int32_t sample;
    // Divisor of the logits. 0 always chooses the likeliest token.
    float temperature;
    // Number of likeliest tokens to choose from. 0 for all.
    uint32_t top_k;
    // Probability that the tokens to choose from have together, above 0 to 1.
    float top_p;
    // Least probability of a token, as a fraction of the likeliest token's, 0 to 1.
    float min_p;
    // Penalty for tokens of the text so far. 1 for none.
    float repetition_penalty;
    // Whether the model thinks before it answers.
    int32_t thinking;
    // Whether special tokens, and thoughts and calls with them, are part of the text.
    int32_t show_special;
    // Whether replies have an event for each token.
    int32_t token_events;
    // Most soft tokens of a picture.
    uint32_t picture_tokens;
    // Texts that end a reply, in addition to the earlier ones.
    const char *const *stop;
} sw_reply_settings;

// Kind of a grammar.
typedef int32_t sw_grammar;

// The tools that a reply may call.
typedef int32_t sw_tool_choice;

// Kind of a part.
typedef int32_t sw_part_kind;

// A part of a turn. Fields that its kind does not name are ignored.
typedef struct sw_part {
    // Size of this struct.
    size_t size;
    // A `SW_PART_` constant.
    sw_part_kind kind;
    // Samples per second.
    uint32_t rate;
    // The content.
    const void *data;
    // Number of bytes or floats. `SIZE_MAX` for a text or path that ends with a 0 byte.
    size_t count;
    // Pixels of a row.
    uint32_t width;
    // Number of rows.
    uint32_t height;
    // Bytes from one row to the next.
    size_t stride;
    // Column and row of each patch, one after the other. -1 for padding.
    const int32_t *positions;
    // Number of patches, half as many as the numbers of `positions`.
    size_t position_count;
    // Id of a call.
    const char *id;
    // Name of a tool.
    const char *name;
} sw_part;

// The author of a turn.
typedef int32_t sw_role;

// A turn of a conversation.
typedef struct sw_turn {
    // Size of this struct.
    size_t size;
    // A `SW_ROLE_` constant.
    sw_role role;
    // 0.
    int32_t reserved;
    // The content in order.
    const struct sw_part *parts;
    // Number of parts.
    size_t part_count;
} sw_turn;

// Result of saving a session.
typedef struct sw_saved {
    // Size of this struct.
    size_t size;
    // Number of tokens of the history.
    uint64_t tokens;
    // Bytes of the file.
    uint64_t bytes;
    // Whether the file has the KV cache. Otherwise restoring runs the tokens again.
    int32_t has_states;
    // 0.
    int32_t reserved;
} sw_saved;

// The last failure of a thread. Its texts are valid until the next failure of a call on this
// thread.
typedef struct sw_error {
    // Size of this struct.
    size_t size;
    // The status that the call returned. `SW_OK` if no call failed.
    sw_status status;
    // Whether a device or its worker process was lost. Opening the model again may help.
    int32_t is_device_lost;
    // The message without the place. Never NULL.
    const char *message;
    // The place of the failure, such as a file, or NULL.
    const char *place;
    // Advice for the user, one sentence, or NULL.
    const char *help;
} sw_error;

// A deviation from the request. Under `strict` it is an error.
#define SW_NOTICE_FALLBACK 0

// A file was used although it violates the policy of signatures.
#define SW_NOTICE_WARNING 1

// How a plan was made or a bundle was compiled.
#define SW_NOTICE_MAKING 2

// Other useful information.
#define SW_NOTICE_NOTE 3

// When the bundle was compiled, or the checkpoint was planned.
#define SW_STAGE_MAKING 0

// When the model was opened on this machine.
#define SW_STAGE_OPENING 1

// When a tower for pictures or sounds was opened.
#define SW_STAGE_TOWER 2

// The file is used, and signatures are not checked.
#define SW_SIGNATURES_OFF 0

// The file is used, with a notice.
#define SW_SIGNATURES_WARN 1

// The file is refused before parsing.
#define SW_SIGNATURES_REQUIRE 2

// Any later chain, when the bundle is opened and when a device is lost during a session.
#define SW_FALLBACK_ANY 0

// Any later chain when the bundle is opened. In a session, the loss of a device is an error.
#define SW_FALLBACK_AT_OPENING 1

// Only the chains in `fallback_chains`, at both times.
#define SW_FALLBACK_ONLY 2

// None. Every fallback is an error.
#define SW_FALLBACK_REFUSE 3

// Queries and compiling, if the worker program is found.
#define SW_ISOLATION_AUTOMATIC 0

// None.
#define SW_ISOLATION_OFF 1

// Queries and compiling. A missing worker program is an error.
#define SW_ISOLATION_COMPILE 2

// All work. A missing worker program is an error.
#define SW_ISOLATION_PROCESS 3

// Instructions.
#define SW_ROLE_SYSTEM 0

// The user.
#define SW_ROLE_USER 1

// The model.
#define SW_ROLE_ASSISTANT 2

// The application, with results of calls.
#define SW_ROLE_TOOL 3

// Text: `data` with `count` bytes.
#define SW_PART_TEXT 0

// A thought of the model: `data` with `count` bytes.
#define SW_PART_THOUGHT 1

// A call of a tool by the model: `id`, `name`, and `data` with `count` bytes of JSON.
#define SW_PART_TOOL_CALL 2

// The result of a call: `id`, and `data` with `count` bytes of text.
#define SW_PART_TOOL_RESULT 3

// A PNG, JPEG, WebP, GIF, BMP or TIFF file: `data` is its path with `count` bytes.
#define SW_PART_PICTURE_FILE 4

// The content of a picture file: `data` with `count` bytes.
#define SW_PART_PICTURE_BYTES 5

// Rows of pixels, three bytes each (red, green, blue): `data` with `count` bytes, `width`,
// `height`, `stride`.
#define SW_PART_PICTURE_PIXELS 6

// Patches that the app computed itself: `data` with `count` floats, and `positions`.
#define SW_PART_PICTURE_PATCHES 7

// A WAV or FLAC file: `data` is its path with `count` bytes.
#define SW_PART_SOUND_FILE 8

// The content of a sound file: `data` with `count` bytes.
#define SW_PART_SOUND_BYTES 9

// Samples of one channel, -1 to 1: `data` with `count` floats, and `rate`.
#define SW_PART_SOUND_SAMPLES 10

// Mel frames that the app computed itself: `data` with `count` floats.
#define SW_PART_SOUND_FRAMES 11

// There are no more events.
#define SW_EVENT_END 0

// Final text: `text`. Whole characters, never a part of a stop text.
#define SW_EVENT_TEXT 1

// Final text of a thought: `text`.
#define SW_EVENT_THOUGHT 2

// A call of a tool began: `index`, `id`, `name`.
#define SW_EVENT_TOOL_CALL_BEGIN 3

// More of the arguments of a call: `index`, `text`. The texts of a call together are JSON.
#define SW_EVENT_TOOL_CALL_ARGUMENTS 4

// A call is complete: `index`, `id`, `name`, and the arguments as JSON in `text`.
#define SW_EVENT_TOOL_CALL 5

// A call that had begun is not a call: `index`. Its text follows as text of the answer.
#define SW_EVENT_TOOL_CALL_DROPPED 6

// A draft was dropped: `name`, and the reason in `text`. The reply is the same, in more steps.
#define SW_EVENT_DRAFT_DROPPED 7

// A token was chosen: `token`. Only if `token_events` of the settings requests it.
#define SW_EVENT_TOKEN 8

// The reply ended: `reason`, the stop token in `token` or the stop text in `text`.
#define SW_EVENT_DONE 9

// The model generated a stop token.
#define SW_END_STOP_TOKEN 0

// A stop text was completed.
#define SW_END_STOP_TEXT 1

// The reply matches the grammar, which allows no further token.
#define SW_END_GRAMMAR 2

// The requested number of tokens was reached.
#define SW_END_MAX_TOKENS 3

// The context has no position for another token.
#define SW_END_CONTEXT_FULL 4

// The reply was cancelled.
#define SW_END_CANCELLED 5

// The deadline of the session passed.
#define SW_END_DEADLINE 6

// `max_tokens` is set.
#define SW_SET_MAX_TOKENS 1

// `max_thought_tokens` is set.
#define SW_SET_MAX_THOUGHT_TOKENS 2

// `sample` is set.
#define SW_SET_SAMPLE 4

// `temperature` is set. Without `sample`, a temperature above 0 turns sampling on, and 0 turns it
// off.
#define SW_SET_TEMPERATURE 8

// `top_k` is set.
#define SW_SET_TOP_K 16

// `top_p` is set.
#define SW_SET_TOP_P 32

// `min_p` is set.
#define SW_SET_MIN_P 64

// `repetition_penalty` is set.
#define SW_SET_REPETITION_PENALTY 128

// `seed` is set.
#define SW_SET_SEED 256

// `thinking` is set.
#define SW_SET_THINKING 512

// `show_special` is set.
#define SW_SET_SHOW_SPECIAL 1024

// `token_events` is set.
#define SW_SET_TOKEN_EVENTS 2048

// `picture_tokens` is set.
#define SW_SET_PICTURE_TOKENS 4096

// Any text.
#define SW_GRAMMAR_NONE 0

// JSON that a schema accepts.
#define SW_GRAMMAR_JSON_SCHEMA 1

// Any JSON object.
#define SW_GRAMMAR_JSON_OBJECT 2

// A regular expression, without anchors.
#define SW_GRAMMAR_REGEX 3

// A Lark grammar.
#define SW_GRAMMAR_LARK 4

// The model decides whether it calls tools.
#define SW_TOOLS_AUTO 0

// Tools are not offered, and the reply is text.
#define SW_TOOLS_NONE 1

// The reply is at least one call.
#define SW_TOOLS_REQUIRED 2

// The reply is one call of the named tool.
#define SW_TOOLS_NAMED 3

// Success.
#define SW_OK 0

// Invalid arguments.
#define SW_ARGUMENT 1

// A file is damaged or inconsistent.
#define SW_INVALID 2

// Valid, but not supported by this version or build.
#define SW_UNSUPPORTED 3

// Made for another version, chip, model or shim.
#define SW_INCOMPATIBLE 4

// A file or a named item does not exist, or cannot be read or written.
#define SW_MISSING 5

// No plan was found, or every plan was refused.
#define SW_PLANNING 6

// A shim failed while compiling or running.
#define SW_SHIM 7

// Not signed as the policy requires, or revoked.
#define SW_UNTRUSTED 8

// Under `strict`, a result would have deviated from the request.
#define SW_STRICT 9

// The prompt and the reply do not fit the context.
#define SW_CONTEXT 10

// The memory budget is too small, or the system had too little memory.
#define SW_MEMORY 11

// The system had too little disk space, or too few open files, processes or threads.
#define SW_RESOURCE 12

// Cancelled by the caller.
#define SW_CANCELLED 13

// A bug in this library.
#define SW_INTERNAL 14

// The handle is closed.
#define SW_CLOSED 15

// Another call of the same session is in progress.
#define SW_BUSY 16

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the version of the library, in the form of `SW_VERSION`. Libraries of the same major
// version, and of the same minor version while the major one is 0, have the same interface.
uint32_t sw_version(void);

// Creates a cancel handle.
sw_status sw_cancel_new(struct sw_cancel **cancel);

// Requests the calls with this handle to stop with `SW_CANCELLED`. The request is permanent.
sw_status sw_cancel_request(const struct sw_cancel *cancel);

// Closes a cancel handle. Calls that use it continue.
sw_status sw_cancel_close(struct sw_cancel *cancel);

// Closes a model and all of its sessions. Calls in progress are cancelled, and the memory is freed
// when the last of them ends. The handles of the sessions are still to be closed.
sw_status sw_model_close(struct sw_model *model);

// Returns what opening a model found, as JSON: `plan`, `variant`, `chain`, `chat`,
// `opening-milliseconds`, `verified`, and `notices` with `kind`, `stage` and `text`.
sw_status sw_model_report(const struct sw_model *model, struct sw_result **report);

// Writes the memory use of a model and its sessions.
sw_status sw_model_memory(const struct sw_model *model, struct sw_memory *memory);

// Frees the memory of all sessions without a reply or a call in progress, for when the system is
// short of memory. Their next reply runs their history again. `sessions` and `bytes` may be NULL,
// and get the number of released sessions and the freed bytes of the budget.
sw_status sw_model_release_idle(const struct sw_model *model, uint64_t *sessions, uint64_t *bytes);

// Warms a model up, so that its first token takes no longer than the others. `cancel` and
// `milliseconds` may be NULL.
sw_status sw_model_prewarm(const struct sw_model *model, const struct sw_cancel *cancel, uint64_t *milliseconds);

// Computes the sentence vector of a text, of length 1, with an embedding model. `bytes` is the
// length of the text, or `SIZE_MAX` if it ends with a 0 byte. `options` may be NULL. The result
// has floats.
sw_status sw_model_embed(const struct sw_model *model,
                         const char *text,
                         size_t bytes,
                         const struct sw_embed_options *options,
                         struct sw_result **vector);

// Encodes a text as token ids. `bytes` is the length of the text, or `SIZE_MAX` if it ends with a
// 0 byte. If `special` is not 0, the special tokens that the tokenizer adds are included. The
// result has tokens.
sw_status sw_model_tokenize(const struct sw_model *model,
                            const char *text,
                            size_t bytes,
                            int32_t special,
                            struct sw_result **tokens);

// Decodes token ids to a text. If `special` is 0, special tokens are left out.
sw_status sw_model_detokenize(const struct sw_model *model,
                              const uint32_t *tokens,
                              size_t count,
                              int32_t special,
                              struct sw_result **text);

// Passes all notices of a model so far to `notice`, on this thread.
sw_status sw_model_notices(const struct sw_model *model, sw_notice_fn notice, void *user);

// Opens a bundle: a directory, a packed file, or an entry `archive!/entry` that is stored
// uncompressed. `options` may be NULL. A library with the feature `build` opens checkpoints too.
sw_status sw_model_open(const char *path, const struct sw_open_options *options, struct sw_model **model);

// Opens all volumes of a packed bundle, in any order.
sw_status sw_model_open_volumes(const char *const *volumes,
                                const struct sw_open_options *options,
                                struct sw_model **model);

// Opens a packed bundle within an open file: `length` bytes from `offset` on, or all of them if
// `length` is `UINT64_MAX`. The descriptor is duplicated and stays open.
sw_status sw_model_open_descriptor(int descriptor,
                                   uint64_t offset,
                                   uint64_t length,
                                   const struct sw_open_options *options,
                                   struct sw_model **model);

// Returns the text of a result, valid until the result is closed. `bytes` may be NULL, and gets
// the length without the 0 byte at the end. Returns NULL if the handle is not of an open result
// with a text.
const char *sw_result_text(const struct sw_result *result, size_t *bytes);

// Returns the numbers of a result, valid until the result is closed. `count` may be NULL. Returns
// NULL if the handle is not of an open result with numbers.
const float *sw_result_floats(const struct sw_result *result, size_t *count);

// Returns the token ids of a result, valid until the result is closed. `count` may be NULL.
// Returns NULL if the handle is not of an open result with tokens.
const uint32_t *sw_result_tokens(const struct sw_result *result, size_t *count);

// Closes a result and frees its memory.
sw_status sw_result_close(struct sw_result *result);

// Runs the session until the next event and writes it. After the last event and after an error,
// the kind of the event is `SW_EVENT_END`.
sw_status sw_reply_next(const struct sw_reply *reply, struct sw_event *event);

// Passes all further events to `each`, on this thread. `SW_EVENT_END` is not passed.
sw_status sw_reply_each(const struct sw_reply *reply, sw_event_fn each, void *user);

// Runs a reply to its end and returns the rest of its text, without thoughts.
sw_status sw_reply_text(const struct sw_reply *reply, struct sw_result **text);

// Ends a reply early, from any thread. The call in progress, if there is any, delivers its pending
// text and then `SW_EVENT_DONE` with `SW_END_CANCELLED`.
sw_status sw_reply_cancel(const struct sw_reply *reply);

// Writes counts and times of a reply so far.
sw_status sw_reply_statistics(const struct sw_reply *reply, struct sw_statistics *statistics);

// Closes a reply, which ends it. The conversation keeps its text so far. Returns at once, also
// while another thread waits for an event.
sw_status sw_reply_close(struct sw_reply *reply);

// Starts a session.
sw_status sw_session_open(const struct sw_model *model, struct sw_session **session);

// Restores a session that `sw_session_save` wrote. `reason` may be NULL. If the tokens of the
// session will be run again, it gets the reason as a text, otherwise NULL.
sw_status sw_session_restore(const struct sw_model *model,
                             const char *file,
                             struct sw_session **session,
                             struct sw_result **reason);

// Starts a session with the turns, the history and the settings of `original`. Both continue
// independently.
sw_status sw_session_fork(const struct sw_model *model,
                          const struct sw_session *original,
                          struct sw_session **session);

// Closes a session. A call in progress is cancelled, and the memory is freed when that call ends.
// The handles of its replies are still to be closed.
sw_status sw_session_close(struct sw_session *session);

// Changes the settings of later replies. Applies all changes, or none if one is an error.
sw_status sw_session_configure(const struct sw_session *session, const struct sw_reply_settings *settings);

// Sets the grammar that later replies must match. `text` is the schema, the expression or the
// grammar.
sw_status sw_session_constrain(const struct sw_session *session, sw_grammar kind, const char *text);

// Sets the tools that replies may call: a JSON list as in OpenAI's requests. "[]" disables calls.
sw_status sw_session_set_tools(const struct sw_session *session, const char *json);

// Sets which tools replies may or must call. `name` is NULL except for `SW_TOOLS_NAMED`.
sw_status sw_session_choose_tool(const struct sw_session *session, sw_tool_choice choice, const char *name);

// Adds a system turn. Chat templates support one only before the first turn of the user.
sw_status sw_session_system(const struct sw_session *session, const char *text);

// Adds a turn of the user with a text, and starts the reply.
sw_status sw_session_chat(const struct sw_session *session, const char *text, struct sw_reply **reply);

// Adds a turn of the user with texts, pictures and sounds, and starts the reply. The first picture
// or sound of a model opens a tower, with `progress`, which may be NULL.
sw_status sw_session_chat_parts(const struct sw_session *session,
                                const struct sw_part *parts,
                                size_t count,
                                sw_progress_fn progress,
                                void *user,
                                struct sw_reply **reply);

// Replaces the conversation by `turns`, and starts the reply to the last one. An equal beginning
// is not run again. `progress` may be NULL.
sw_status sw_session_reply_to(const struct sw_session *session,
                              const struct sw_turn *turns,
                              size_t count,
                              sw_progress_fn progress,
                              void *user,
                              struct sw_reply **reply);

// Adds the result of a call. Once all calls of a reply have results, `sw_session_answer`
// continues. `bytes` is the length of the result, or `SIZE_MAX` if it ends with a 0 byte.
sw_status sw_session_tool_result(const struct sw_session *session, const char *id, const char *result, size_t bytes);

// Starts the reply to the turns so far, which end with results of calls or with a turn of the
// user.
sw_status sw_session_answer(const struct sw_session *session, struct sw_reply **reply);

// Starts a continuation of a plain text. Earlier turns are forgotten. `bytes` is the length of the
// text, or `SIZE_MAX` if it ends with a 0 byte.
sw_status sw_session_complete(const struct sw_session *session,
                              const char *text,
                              size_t bytes,
                              struct sw_reply **reply);

// Starts a continuation of token ids. Earlier turns are forgotten.
sw_status sw_session_complete_tokens(const struct sw_session *session,
                                     const uint32_t *tokens,
                                     size_t count,
                                     struct sw_reply **reply);

// Stops the reply or the call in progress, from any thread. No effect if there is none.
sw_status sw_session_cancel(const struct sw_session *session);

// Returns the turns so far as JSON: a list of `role` and `parts`, each with its `type`. Pictures
// and sounds have no content there.
sw_status sw_session_turns(const struct sw_session *session, struct sw_result **turns);

// Returns the token ids of the history, as far as they were run.
sw_status sw_session_tokens(const struct sw_session *session, struct sw_result **tokens);

// Removes the oldest turn of the user with its reply. `found` may be NULL, and gets whether there
// was one.
sw_status sw_session_forget_oldest_turn(const struct sw_session *session, int32_t *found);

// Removes all turns from the turn `position` on.
sw_status sw_session_rewind(const struct sw_session *session, uint64_t position);

// Removes all turns and the history.
sw_status sw_session_clear(const struct sw_session *session);

// Frees the memory of the KV cache and of all buffers, also between two events of a reply. The
// next event or reply allocates it again and runs the history again.
sw_status sw_session_release(const struct sw_session *session);

// Allocates the memory of a released session and runs its history again now. `tokens` may be NULL,
// and gets the number of tokens that were run.
sw_status sw_session_resume(const struct sw_session *session, uint64_t *tokens);

// Saves a session to a file, which has the content of the conversation in the clear. `saved` may
// be NULL.
sw_status sw_session_save(const struct sw_session *session, const char *file, struct sw_saved *saved);

// Returns where every step of a session ran so far, as JSON. `fallbacks` lists all deviations from
// the request.
sw_status sw_session_placement(const struct sw_session *session, struct sw_result **placement);

// Writes the last failure of a call on this thread. A call that succeeds does not change it.
sw_status sw_last_error(struct sw_error *error);

// Returns the name of a status, such as "context". "unknown" for other numbers. The text is
// static.
const char *sw_status_name(sw_status status);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SHARDWRIGHT_H */
