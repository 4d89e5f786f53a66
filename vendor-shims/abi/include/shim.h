/*
 * shim.h: the contract between Shardwright's host and a vendor shim.
 *
 * A shim is a shared library that compiles shards of a network for one vendor's accelerator and runs them. It exports
 * one symbol, `shardwright_shim_entry`; everything else is reached through the table that this function returns.
 * `vendor-shims/README.md` is the numbered how-to, `vendor-shims/template/c` a shim to copy.
 *
 * Status: draft. Until the first tagged release this file may change together with all its users. From then on it is
 * frozen: structs only grow at the end, numbers are only appended, and the version range below decides.
 *
 * GENERAL RULES (exceptions are noted at the member)
 *
 *  1. 64-bit little-endian machines only. Fixed-width integers only; sizes and counts are uint64_t.
 *  2. Every struct starts with `size`: the bytes its writer knows, a multiple of 8. A reader reads a
 *     member only if `size` covers it; SW_HAS(pointer, member) tests that. It accepts every size
 *     from SW_MINIMUM_… on: a member that the writer does not know counts as 0 (null), with the meaning
 *     documented at the member, and members that the reader does not know are ignored. Arrays of
 *     structs are arrays of pointers, so elements may grow.
 *  3. Strings are UTF-8 and NUL-terminated. Reserved members are 0.
 *  4. Pointer notes read [owner, valid until, null]. "call" means until the called function returns. Data behind
 *     a pointer to const is never written. A reader that needs it for longer copies it.
 *  5. A shim returns items through sinks: it fills a struct on its own stack and calls `sink->item(sink->context, &it)`, once for
 *     each item, only on the calling thread and only before it returns. `item` and `context`: [host, call,
 *     item never null, context may be]. The host copies inside `item`. No ownership is transferred.
 *  6. Functions that can fail return `sw_error *`: null is success, anything else is an error object that the host frees
 *     with `error_free`. A function that fails leaves its out-parameters alone. No exception, panic, longjmp or exit()
 *     crosses this boundary.
 *  7. Threads: for one instance (`sw_shim`) the host makes one call at a time, from any thread. At the same time it may
 *     call `run` on any number of that instance's shards, one run at a time per shard, and `cancel` from anywhere.
 *     Functions without an instance may be called from any thread at any time.
 *  8. Order: shards are unloaded and buffers freed before their instance is closed; the library is never unloaded.
 *  9. A null function in the table has the meaning documented at that function. Functions marked [required] must not be null.
 */
#ifndef SHARDWRIGHT_SHIM_H
#define SHARDWRIGHT_SHIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define SW_STATIC_ASSERT(condition, text) static_assert(condition, text)
extern "C" {
#else
#define SW_STATIC_ASSERT(condition, text) _Static_assert(condition, text)
#endif

SW_STATIC_ASSERT(sizeof(void *) == 8, "the shim contract is for 64-bit machines");
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the shim contract is for little-endian machines"
#endif

/* Contract versions: major << 16 | minor. */
#define SW_VERSION_0_1 0x00000001u
#define SW_VERSION SW_VERSION_0_1

/* Draft of that version: until the first tagged release the contract changes under one version number, together with all its
 * users. A host refuses a shim that was compiled from another draft. The number is a hash of this file's code; a test prints it. */
#define SW_DRAFT 0xeeb82b53u

/* The one exported symbol. */
#define SW_ENTRY_SYMBOL "shardwright_shim_entry"

/* Whether `pointer->member` is within the bytes its writer knew. */
#define SW_HAS(pointer, member) \
    ((pointer)->size >= (uint64_t)((const char *)(&(pointer)->member + 1) - (const char *)(pointer)))

/* ---- Numbers. Never renumbered, only appended. ---------------------------------------------------------------- */

/* Element types. */
#define SW_DTYPE_F32 1u
#define SW_DTYPE_F16 2u
#define SW_DTYPE_BF16 3u
#define SW_DTYPE_I32 4u
#define SW_DTYPE_I16 5u
#define SW_DTYPE_U16 6u
#define SW_DTYPE_I8 7u
#define SW_DTYPE_U8 8u
#define SW_DTYPE_I64 9u
/* Weights only: packed low bits first, two's complement, every row (last axis) padded to a whole byte. */
#define SW_DTYPE_I4 10u
#define SW_DTYPE_I2 11u

/* Operations: semantic from 1, primitive from 64. Meaning and attributes: vendor-shims/README.md. */
#define SW_OP_LINEAR 1u
#define SW_OP_RMS_NORM 2u
#define SW_OP_ROPE 3u
#define SW_OP_ATTENTION 4u
#define SW_OP_GELU 5u
#define SW_OP_SILU 6u
#define SW_OP_SOFTCAP 7u
#define SW_OP_SOFTMAX 8u
#define SW_OP_STATE_UPDATE 9u
#define SW_OP_L2_NORMALIZE 10u
#define SW_OP_DYNAMIC_LINEAR 11u
#define SW_OP_ROTATE 12u
#define SW_OP_LAYER_NORM 13u
#define SW_OP_AXIAL_ROPE 14u
#define SW_OP_RELATIVE_ATTENTION 15u
#define SW_OP_CONVOLUTION 16u
#define SW_OP_DEPTHWISE_CONVOLUTION 17u
#define SW_OP_CLAMP 18u
#define SW_OP_SIGMOID 19u
#define SW_OP_GLU 20u
#define SW_OP_MEAN_ROWS 21u
#define SW_OP_ADD 64u
#define SW_OP_SUB 65u
#define SW_OP_MUL 66u
#define SW_OP_DIV 67u
#define SW_OP_ADD_SCALAR 68u
#define SW_OP_MUL_SCALAR 69u
#define SW_OP_NEG 70u
#define SW_OP_EXP 71u
#define SW_OP_TANH 72u
#define SW_OP_SQRT 73u
#define SW_OP_RSQRT 74u
#define SW_OP_RECIPROCAL 75u
#define SW_OP_REDUCE_SUM 76u
#define SW_OP_REDUCE_MEAN 77u
#define SW_OP_REDUCE_MAX 78u
#define SW_OP_MAT_MUL 79u
#define SW_OP_RESHAPE 80u
#define SW_OP_TRANSPOSE 81u
#define SW_OP_SLICE 82u
#define SW_OP_CONCAT 83u
#define SW_OP_MAX_SCALAR 84u
#define SW_OP_ROUND 85u
#define SW_OP_CONVERT 86u
#define SW_OP_MAX 87u
#define SW_OP_MIN 88u

/* Roles of inputs and outputs: step inputs from 1, boundaries from 16, states from 32. */
#define SW_ROLE_POSITIONS 1u
#define SW_ROLE_SLOTS 2u
#define SW_ROLE_ROTARY_COS 3u
#define SW_ROLE_ROTARY_SIN 4u
#define SW_ROLE_MASK 5u
#define SW_ROLE_POOLING 6u
#define SW_ROLE_GATHERED 7u
#define SW_ROLE_FEATURES 8u
#define SW_ROLE_GRID 9u
#define SW_ROLE_VALID 10u
#define SW_ROLE_AXIAL_COS 11u
#define SW_ROLE_AXIAL_SIN 12u
#define SW_ROLE_GATHERED_BY_GRID 13u
#define SW_ROLE_HIDDEN 16u
#define SW_ROLE_PER_LAYER 17u
#define SW_ROLE_LOGITS 18u
#define SW_ROLE_EMBEDDING 19u
#define SW_ROLE_TAP 20u
#define SW_ROLE_SOFT_ROWS 21u
#define SW_ROLE_STATE 32u
#define SW_ROLE_STATE_ROWS 33u

/* Kinds of entry point. */
#define SW_ENTRY_PREFILL 1u /* fills states */
#define SW_ENTRY_DECODE 2u  /* every row through every layer */
#define SW_ENTRY_ENCODE 3u  /* no state */

/* Kinds of attribute. */
#define SW_ATTRIBUTE_INTEGER 1u
#define SW_ATTRIBUTE_FLOAT 2u
#define SW_ATTRIBUTE_INTEGERS 3u
#define SW_ATTRIBUTE_TEXT 4u

/* Kinds of quantisation. A null sw_quantisation pointer means none. */
#define SW_QUANTISATION_PER_TENSOR 1u
#define SW_QUANTISATION_PER_CHANNEL 2u
#define SW_QUANTISATION_PER_BLOCK 3u
#define SW_QUANTISATION_PER_BLOCK_WITH_MINIMUM 4u

/* Classes of error. A planner acts on them. */
#define SW_ERROR_UNSUPPORTED_OP 1u
#define SW_ERROR_UNMAPPABLE 2u          /* the compiler found no way to place the graph */
#define SW_ERROR_RESOURCE_LIMIT 3u      /* details name the limit: limit, value, max */
#define SW_ERROR_INCOMPATIBLE_ARTEFACT 4u
#define SW_ERROR_CORRUPT_ARTEFACT 5u
#define SW_ERROR_DEVICE_LOST 6u         /* every handle of that device is invalid; see recover */
#define SW_ERROR_DEADLINE 7u
#define SW_ERROR_STATE_LOST 8u
#define SW_ERROR_INVALID_ARGUMENT 9u
#define SW_ERROR_INTERNAL 10u
#define SW_ERROR_CANCELLED 11u

/* Verdicts on a node. */
#define SW_VERDICT_TAKEN 1u
#define SW_VERDICT_REFUSED 2u /* the host decomposes the node, or fails with the reason */

/* Where a device is. */
#define SW_DEVICE_PRESENT 1u   /* in this machine: compiles and runs */
#define SW_DEVICE_OFFLINE 2u   /* named SoC, compiles only */
#define SW_DEVICE_SIMULATED 3u /* named SoC, compiles and runs in a simulator */

/* Where a number comes from. */
#define SW_PROVENANCE_DECLARED 1u
#define SW_PROVENANCE_REPORTED 2u
#define SW_PROVENANCE_PROBED 3u
#define SW_PROVENANCE_LEARNED 4u
#define SW_PROVENANCE_USER 5u
#define SW_PROVENANCE_MEASURED 16u
#define SW_PROVENANCE_SIMULATED 17u
#define SW_PROVENANCE_MODELLED 18u

/* Kinds of flag value. */
#define SW_FLAG_BOOLEAN 1u
#define SW_FLAG_INTEGER 2u
#define SW_FLAG_FLOAT 3u
#define SW_FLAG_CHOICE 4u
#define SW_FLAG_TEXT 5u

/* When a flag takes effect. */
#define SW_FLAG_STAGE_COMPILE 0u /* set in a work order, reported by compile */
#define SW_FLAG_STAGE_LOAD 1u    /* set in the options of load, reported by flag_verdicts; no artefact depends on it */

/* Outcome of a flag. An echo in an artefact proves nothing: that is "recorded". */
#define SW_FLAG_APPLIED 1u  /* in effect; `evidence` states how that is known */
#define SW_FLAG_RECORDED 2u /* the compiler recorded it, but its effect is not proven */
#define SW_FLAG_INERT 3u    /* compiling with and without it gave the same code */
#define SW_FLAG_REFUSED 4u
#define SW_FLAG_UNKNOWN 5u

/* Answers to "can this shim use that artefact?". */
#define SW_COMPATIBILITY_NOT_MINE 1u
#define SW_COMPATIBILITY_OPTIMAL 2u
#define SW_COMPATIBILITY_RECOMPILE 3u /* compile it again; it may still load, but runs worse */
#define SW_COMPATIBILITY_UNSUPPORTED 4u

/* Direction of a binding. */
#define SW_BINDING_INPUT 1u
#define SW_BINDING_OUTPUT 2u
#define SW_BINDING_STATE 3u      /* read and written in place, kept between runs */
#define SW_BINDING_STATE_READ 4u /* a state that a run only reads: another shard or the runtime writes it */

/* How a state is updated. */
#define SW_UPDATE_NONE 0u       /* not a written state */
#define SW_UPDATE_IN_GRAPH 1u   /* the shim writes the rows to their slots */
#define SW_UPDATE_BY_RUNTIME 2u /* the shim returns the rows, the runtime copies them */

/* Memory kinds, a set of bits. */
#define SW_MEMORY_HOST 1u             /* any pointer of the process */
#define SW_MEMORY_SHIM 2u             /* from buffer_allocate of the same shim and device */
#define SW_MEMORY_DMA_BUF 4u          /* a dma-buf file descriptor, imported */
#define SW_MEMORY_HARDWARE_BUFFER 8u  /* an AHardwareBuffer, imported */

/* Directions of buffer_sync, a set of bits. */
#define SW_SYNC_BEFORE_HOST 1u /* device wrote, the host will read or write */
#define SW_SYNC_AFTER_HOST 2u  /* the host wrote, the device will read or write */

/* Levels of a log line. */
#define SW_LOG_ERROR 1u
#define SW_LOG_WARNING 2u
#define SW_LOG_INFO 3u
#define SW_LOG_DEBUG 4u

/* An absent optional node input. */
#define SW_NO_TENSOR 0xffffffffu

/* A head is at most this long. */
#define SW_HEAD_LIMIT 65536u

/* The document of an inspection is at most this long, in bytes. */
#define SW_DOCUMENT_LIMIT 4194304u

/* ---- Minimum sizes ------------------------------------------------------------------------------
 *
 * Sizes that a reader of any version may rely on. Frozen with the contract: later members are
 * appended beyond the minimum size, with a meaning of 0, and never raise it. Shims of this version pass
 * whole structs, except for the named members, which are optional. Hosts pass whole structs. */

#define SW_MINIMUM_DETAIL 24u
#define SW_MINIMUM_ERROR 32u /* without: log_tail, details */
#define SW_MINIMUM_HOST 40u
#define SW_MINIMUM_ANSWER 40u
#define SW_MINIMUM_OPTION 24u
#define SW_MINIMUM_DESCRIPTION 32u /* without: vendor_library, instance_limit */
#define SW_MINIMUM_DEVICE 40u /* without: memory_bytes */
#define SW_MINIMUM_LIMIT 32u /* without: note */
#define SW_MINIMUM_FLAG 72u
#define SW_MINIMUM_VERDICT 32u
#define SW_MINIMUM_ESTIMATE 48u /* without: operations */
#define SW_MINIMUM_FLAG_VERDICT 32u
#define SW_MINIMUM_PLACEMENT 32u /* without: reason */
#define SW_MINIMUM_COMPATIBILITY 24u
#define SW_MINIMUM_INSPECTION 24u
#define SW_MINIMUM_LOADED_ENTRY 48u
#define SW_MINIMUM_BINDING 104u
#define SW_MINIMUM_FACT 64u
#define SW_MINIMUM_DESCRIPTION_SINK 24u
#define SW_MINIMUM_DEVICE_SINK 24u
#define SW_MINIMUM_LIMIT_SINK 24u
#define SW_MINIMUM_FLAG_SINK 24u
#define SW_MINIMUM_FLAG_VERDICT_SINK 24u
#define SW_MINIMUM_VERDICT_SINK 24u
#define SW_MINIMUM_ESTIMATE_SINK 24u
#define SW_MINIMUM_COMPATIBILITY_SINK 24u
#define SW_MINIMUM_INSPECTION_SINK 24u
#define SW_MINIMUM_LOADED_ENTRY_SINK 24u
#define SW_MINIMUM_BINDING_SINK 24u
#define SW_MINIMUM_FACT_SINK 24u
#define SW_MINIMUM_CHIP 48u
#define SW_MINIMUM_QUANTISATION 64u
#define SW_MINIMUM_WEIGHT 64u
#define SW_MINIMUM_TENSOR 40u
#define SW_MINIMUM_ATTRIBUTE 64u
#define SW_MINIMUM_NODE 80u
#define SW_MINIMUM_PORT 56u
#define SW_MINIMUM_CONSTANT 24u
#define SW_MINIMUM_ENTRY 120u
#define SW_MINIMUM_WORK_ORDER 80u
#define SW_MINIMUM_COMPILE_OUTPUT 72u
#define SW_MINIMUM_ARTEFACT 56u
#define SW_MINIMUM_IMPORT 40u
#define SW_MINIMUM_BOUND 40u
#define SW_MINIMUM_RUN 56u
#define SW_MINIMUM_TABLE 144u /* without: cancel and all after it */

/* ---- Handles, opaque to the host -------------------------------------------------------------------------------- */

typedef struct sw_shim sw_shim;     /* an instance: devices, options, contexts */
typedef struct sw_shard sw_shard;   /* a loaded artefact */
typedef struct sw_buffer sw_buffer; /* device-visible memory */

/* ---- Errors -------------------------------------------------------------------------------------------------------- */

typedef struct sw_detail {
    uint64_t size;
    const char *key;   /* [shim, error_free, never null] `limit`, `op`, `layer`, … */
    const char *value; /* [shim, error_free, never null] */
} sw_detail;

/* Made by the shim, read by the host on any thread, freed once with error_free. */
typedef struct sw_error {
    uint64_t size;
    uint32_t error_class; /* SW_ERROR_… */
    uint32_t reserved;
    int64_t vendor_code;             /* the vendor library's own code; 0 for none */
    const char *message;             /* [shim, error_free, never null] lower case, quotes the offending value */
    const char *log_tail;            /* [shim, error_free, null: none] last lines of the vendor's log */
    const sw_detail *const *details; /* [shim, error_free, null iff detail_count is 0] */
    uint64_t detail_count;
} sw_error;

/* ---- The entry point ------------------------------------------------------------------------------------------------------- */

typedef struct sw_host {
    uint64_t size;
    uint32_t version_min; /* oldest contract version that the host supports */
    uint32_t version_max; /* newest */
    const char *name;     /* [host, process end, never null] name and version, for logs */
    /* [null: lines are dropped] May be called from any thread until the process ends. `message`: [shim, call, never null]. */
    void (*log)(void *context, uint32_t level, const char *message);
    void *log_context; /* [host, process end, may be null] */
} sw_host;

typedef struct sw_table sw_table;

/* Filled by the shim. The host sets `size` and zeroes the rest. */
typedef struct sw_answer {
    uint64_t size;
    uint32_t version_min;   /* oldest contract version that the shim supports; always set */
    uint32_t version_max;   /* newest */
    uint32_t version;       /* the version of `table`, within both ranges; 0 with a refusal */
    uint32_t reserved;
    const sw_table *table;  /* [shim, process end, null: refused] */
    const char *refusal;    /* [shim, process end, null: not refused] why */
} sw_answer;

/* `host`: [host, process end, never null]; `answer`: [host, call, never null]. Any thread, any number of times. */
typedef void (*sw_entry_function)(const sw_host *host, sw_answer *answer);

/* ---- Items that a shim reports --------------------------------------------------------------------------------------------- */

typedef struct sw_option {
    uint64_t size;
    const char *key;   /* [writer, call, never null] */
    const char *value; /* [writer, call, never null] */
} sw_option;

typedef struct sw_description {
    uint64_t size;
    const char *name;           /* [shim, call, never null] `qnn`, `neuron`, `cpu` */
    const char *vendor;         /* [shim, call, never null] */
    const char *version;        /* [shim, call, never null] of the shim itself */
    const char *vendor_library; /* [shim, call, null: none or not loaded yet] name, version and path of the vendor's library */
    uint64_t instance_limit;    /* instances that may be open at once; 0: any number */
} sw_description;

typedef struct sw_device {
    uint64_t size;
    const char *name;   /* [shim, call, never null] unique within the shim; later calls name the device by it */
    const char *soc;    /* [shim, call, null: not a SoC] lower case, `mt6989` */
    const char *detail; /* [shim, call, null: none] architecture, driver version, … for people */
    uint32_t kind;      /* SW_DEVICE_… */
    uint32_t memory_kinds;  /* SW_MEMORY_… set that run accepts on it */
    uint64_t memory_bytes;  /* memory the device can address; 0: not known */
} sw_device;

typedef struct sw_limit {
    uint64_t size;
    const char *name; /* [shim, call, never null] `ops`, `context-bytes`, … */
    uint64_t value;
    uint32_t provenance; /* SW_PROVENANCE_… */
    uint32_t reserved;
    const char *note; /* [shim, call, null: none] where the number comes from */
} sw_limit;

typedef struct sw_flag {
    uint64_t size;
    const char *name;        /* [shim, call, never null] */
    const char *description; /* [shim, call, never null] */
    uint32_t kind;           /* SW_FLAG_BOOLEAN … SW_FLAG_TEXT */
    uint32_t stage;          /* SW_FLAG_STAGE_… */
    /* [shim, call, null: off unless set] default value as text. For a stage LOAD flag it may change while shards run, to
       the value that the shim measured to be best. The host then passes that value to later loads on this device. */
    const char *standard;
    const char *const *choices; /* [shim, call, null iff choice_count is 0] legal values of a choice */
    uint64_t choice_count;
    int64_t minimum; /* of an integer; minimum > maximum: unbounded */
    int64_t maximum;
} sw_flag;

typedef struct sw_verdict {
    uint64_t size;
    uint64_t node;      /* index in the entry's nodes */
    uint32_t verdict;   /* SW_VERDICT_… */
    uint32_t reserved;
    const char *reason; /* [shim, call, never null with REFUSED] */
} sw_verdict;

typedef struct sw_estimate {
    uint64_t size;
    uint64_t time_microseconds; /* one run with all rows, without uncosted nodes */
    uint32_t provenance;        /* SW_PROVENANCE_MEASURED, _SIMULATED or _MODELLED */
    uint32_t reserved;
    uint64_t bytes_moved;            /* from and to main memory; 0: not known */
    const uint64_t *uncosted;        /* [shim, call, null iff uncosted_count is 0] indices of nodes left out */
    uint64_t uncosted_count; /* as many as nodes: no time is known */
    uint64_t operations;     /* vendor operations that the entry is lowered to, as a limit `ops` counts them; 0: one per node */
    uint64_t artefact_bytes; /* size of an artefact of only this entry point, weights included; 0: not known */
    uint64_t shared_bytes;   /* part of these that an artefact stores once for all its entry points */
} sw_estimate;

typedef struct sw_flag_verdict {
    uint64_t size;
    const char *name;     /* [shim, call, never null] at most one verdict in a compilation */
    uint32_t verdict;     /* SW_FLAG_APPLIED … SW_FLAG_UNKNOWN */
    uint32_t reserved;
    /* [shim, call, never null, with APPLIED never blank] how the verdict is known, or why not */
    const char *evidence;
} sw_flag_verdict;

/* Where a node of a compiled entry will run. Nodes not mentioned run on the device itself. */
typedef struct sw_placement {
    uint64_t size;
    uint64_t entry;    /* index in the work order */
    uint64_t node;     /* index in the entry */
    const char *place; /* [shim, call, never null] `npu`, `cpu`, `fused`, … */
    const char *reason; /* [shim, call, null: none] */
} sw_placement;

typedef struct sw_compatibility {
    uint64_t size;
    uint32_t answer; /* SW_COMPATIBILITY_… */
    uint32_t reserved;
    const char *reason; /* [shim, call, null only with OPTIMAL] */
} sw_compatibility;

/* An identified file, reported by a shim that knows its format. */
typedef struct sw_inspection {
    uint64_t size;
    const char *format;   /* [shim, call, never null] kebab-case, `qnn-context-binary` */
    const char *document; /* [shim, call, never null] JSON text of at most SW_DOCUMENT_LIMIT bytes: an object */
} sw_inspection;

typedef struct sw_loaded_entry {
    uint64_t size;
    uint64_t index;    /* entries are reported in order from 0 */
    const char *name;  /* [shim, call, never null] as in the work order */
    uint64_t rows;     /* largest `rows` of a run */
    uint64_t context;  /* as in the work order */
    uint64_t binding_count;
} sw_loaded_entry;

/* One tensor that a run binds. A state that an entry reads and writes is one binding. */
typedef struct sw_binding {
    uint64_t size;
    uint64_t index;   /* bindings are reported in order from 0 */
    const char *name; /* [shim, call, never null] of the port in the work order; unique within the entry */
    uint32_t direction; /* SW_BINDING_… */
    uint32_t role;      /* SW_ROLE_… */
    uint32_t dtype;     /* SW_DTYPE_… as stored in memory */
    uint32_t update;    /* SW_UPDATE_… */
    const uint64_t *shape;   /* [shim, call, null iff rank is 0] */
    const uint64_t *strides; /* [shim, call, null: dense row-major] in elements, rank of them */
    uint64_t rank;
    uint64_t bytes;        /* length of the bound memory */
    uint64_t alignment;    /* of its first byte; a power of two */
    uint32_t memory_kinds; /* SW_MEMORY_… set accepted; HOST set: a plain pointer suffices */
    uint32_t reserved;
    double scale;          /* real value = (stored - zero_point) * scale; 1 for floats */
    int64_t zero_point;    /* 0 for floats */
} sw_binding;

/* A fact of a chip's profile that the shim reads. Facts that no shim reads are documentation and stay with the host. */
typedef struct sw_fact {
    uint64_t size;
    const char *name;        /* [shim, call, never null] as profiles spell it: `soc-id`, `hexagon-arch` */
    const char *description; /* [shim, call, never null] */
    uint32_t kind;           /* SW_FLAG_BOOLEAN … SW_FLAG_TEXT: type of its value */
    uint32_t required;       /* 1: the shim does not compile for a chip whose profile lacks it; else 0 */
    const char *const *choices; /* [shim, call, null iff choice_count is 0] legal values of a choice */
    uint64_t choice_count;
    int64_t minimum; /* of an integer; minimum > maximum: unbounded */
    int64_t maximum;
} sw_fact;

typedef struct sw_description_sink {
    uint64_t size;
    void *context;
    void (*item)(void *context, const sw_description *description);
} sw_description_sink;

typedef struct sw_device_sink {
    uint64_t size;
    void *context;
    void (*item)(void *context, const sw_device *device);
} sw_device_sink;

typedef struct sw_limit_sink {
    uint64_t size;
    void *context;
    void (*item)(void *context, const sw_limit *limit);
} sw_limit_sink;

typedef struct sw_flag_sink {
    uint64_t size;
    void *context;
    void (*item)(void *context, const sw_flag *flag);
} sw_flag_sink;

typedef struct sw_flag_verdict_sink {
    uint64_t size;
    void *context;
    void (*item)(void *context, const sw_flag_verdict *verdict);
} sw_flag_verdict_sink;

typedef struct sw_verdict_sink {
    uint64_t size;
    void *context;
    void (*item)(void *context, const sw_verdict *verdict);
} sw_verdict_sink;

typedef struct sw_estimate_sink {
    uint64_t size;
    void *context;
    void (*item)(void *context, const sw_estimate *estimate);
} sw_estimate_sink;

typedef struct sw_compatibility_sink {
    uint64_t size;
    void *context;
    void (*item)(void *context, const sw_compatibility *compatibility);
} sw_compatibility_sink;

typedef struct sw_inspection_sink {
    uint64_t size;
    void *context;
    void (*item)(void *context, const sw_inspection *inspection);
} sw_inspection_sink;

typedef struct sw_loaded_entry_sink {
    uint64_t size;
    void *context;
    void (*item)(void *context, const sw_loaded_entry *entry);
} sw_loaded_entry_sink;

typedef struct sw_binding_sink {
    uint64_t size;
    void *context;
    void (*item)(void *context, const sw_binding *binding);
} sw_binding_sink;

typedef struct sw_fact_sink {
    uint64_t size;
    void *context;
    void (*item)(void *context, const sw_fact *fact);
} sw_fact_sink;

/* ---- The chip, from its profile. All of it [host, call]; a shim copies what it keeps. ---------------------------- */

typedef struct sw_chip {
    uint64_t size;
    const char *name; /* [host, call, never null] of its profile: passed to `devices`, and the `soc` of its devices */
    const char *const *aliases; /* [host, call, null iff alias_count is 0] its other names */
    uint64_t alias_count;
    const sw_option *const *facts; /* [host, call, null iff fact_count is 0] facts that the shim reads, each of its declared kind */
    uint64_t fact_count;
} sw_chip;

/* ---- The work order: what to compile. All of it [host, call]; a shim copies what it keeps. ---------------------------- */

/* How stored integers encode real values: real = (stored - zero point) * scale. PER_BLOCK_WITH_MINIMUM, along the last axis
 * only: real = (stored - zero point) * scale - minimum. The scales of the blocks of a row are followed by as many minimums, in
 * the same type; scale_count counts both. */
typedef struct sw_quantisation {
    uint64_t size;
    uint32_t kind;             /* SW_QUANTISATION_… */
    uint32_t axis;             /* PER_CHANNEL and blocks: the axis along which scales change */
    uint64_t block;            /* blocks: elements per scale */
    uint32_t scale_dtype;      /* SW_DTYPE_… of scales */
    uint32_t bits;             /* stored bits per value: 4 and 2 are packed, low bits first */
    const void *scales;        /* [host, call, null: check and estimate of a weight that is not quantised yet] dense, row-major */
    uint64_t scale_count;
    const int32_t *zero_points; /* [host, call, null: all 0] */
    uint64_t zero_point_count;
} sw_quantisation;

typedef struct sw_weight {
    uint64_t size;
    const char *name; /* [host, call, never null] */
    const char *part; /* [host, call, never null] its part in the network: `q`, `down`, `norm`, … */
    const void *data; /* [host, call, null: check and estimate, where the bytes may be missing] page-aligned */
    uint64_t length;  /* bytes, also when data is null */
    uint32_t dtype;   /* SW_DTYPE_… */
    uint32_t rank;
    const uint64_t *shape;               /* [host, call, null iff rank is 0] */
    const sw_quantisation *quantisation; /* [host, call, null: none] */
} sw_weight;

typedef struct sw_tensor {
    uint64_t size;
    const char *name; /* [host, call, never null] */
    uint32_t dtype;   /* SW_DTYPE_… */
    uint32_t rank;
    const uint64_t *shape;               /* [host, call, null iff rank is 0] static, row-major */
    const sw_quantisation *quantisation; /* [host, call, null: none] */
} sw_tensor;

typedef struct sw_attribute {
    uint64_t size;
    const char *name; /* [host, call, never null] */
    uint32_t kind;    /* SW_ATTRIBUTE_… */
    uint32_t reserved;
    int64_t integer;         /* INTEGER, also truth as 0 and 1 */
    double number;           /* FLOAT: a 32-bit value, widened */
    const int64_t *integers; /* [host, call, null iff integer_count is 0] INTEGERS */
    uint64_t integer_count;
    const char *text; /* [host, call, null unless TEXT] */
} sw_attribute;

typedef struct sw_node {
    uint64_t size;
    uint32_t op;         /* SW_OP_… */
    uint32_t op_version; /* grows when an attribute's default changes */
    const char *name;    /* [host, call, never null] unique within the entry */
    int64_t layer;       /* decoder layer; -1: none */
    const uint32_t *inputs; /* [host, call, null iff input_count is 0] tensor indices; SW_NO_TENSOR: optional and absent */
    uint64_t input_count;
    const uint32_t *outputs; /* [host, call, null iff output_count is 0] tensor indices */
    uint64_t output_count;
    const sw_attribute *const *attributes; /* [host, call, null iff attribute_count is 0] */
    uint64_t attribute_count;
} sw_node;

/* An input or output of an entry. */
typedef struct sw_port {
    uint64_t size;
    uint32_t tensor;  /* index in the entry's tensors */
    uint32_t role;    /* SW_ROLE_… */
    const char *name; /* [host, call, never null] a state's input and output share it; otherwise unique within the entry */
    uint64_t index;   /* role detail: SLOTS capacity; GATHERED and GATHERED_BY_GRID asset; GRID axis; VALID rate; PER_LAYER first layer; STATE and STATE_ROWS state; else 0 */
    uint32_t dtype;   /* boundary encoding, SW_DTYPE_… dense row-major */
    uint32_t reserved;
    double scale;       /* real = (stored - zero_point) * scale; 1 for floats */
    int64_t zero_point; /* 0 for floats */
} sw_port;

typedef struct sw_constant {
    uint64_t size;
    uint32_t tensor; /* index in the entry's tensors */
    uint32_t reserved;
    const sw_weight *weight; /* [host, call, never null] equal pointers are the same weight, across entries too */
} sw_constant;

typedef struct sw_entry {
    uint64_t size;
    const char *name; /* [host, call, never null] `prefill_128@4096` */
    uint32_t kind;    /* SW_ENTRY_… */
    uint32_t reserved;
    uint64_t rows;    /* static row count; a run may specify how many are valid */
    uint64_t context; /* capacity of its linear states in positions; ENCODE: equal to rows */
    const sw_tensor *const *tensors; /* these arrays: [host, call, null iff their count is 0] */
    uint64_t tensor_count;
    const sw_node *const *nodes; /* in an order in which every input is ready */
    uint64_t node_count;
    const sw_port *const *inputs;
    uint64_t input_count;
    const sw_port *const *outputs;
    uint64_t output_count;
    const sw_constant *const *constants;
    uint64_t constant_count;
} sw_entry;

typedef struct sw_work_order {
    uint64_t size;
    const char *name;               /* [host, call, never null] its content hash, for logs and caches */
    const sw_entry *const *entries; /* [host, call, never null] they share weights and states */
    uint64_t entry_count;
    const sw_weight *const *weights; /* [host, call, null iff weight_count is 0] each weight once */
    uint64_t weight_count;
    const sw_option *const *flags; /* [host, call, null iff flag_count is 0] each must get a verdict */
    uint64_t flag_count;
    const sw_option *const *options; /* [host, call, null iff option_count is 0] for the shim, not its compiler */
    uint64_t option_count;
} sw_work_order;

/* Callbacks of compile, on the calling thread. All functions [host, call, never null]. */
typedef struct sw_compile_output {
    uint64_t size;
    void *context; /* [host, call, may be null] */
    /* Appends to the artefact. 0: written. Otherwise stop, and return SW_ERROR_CANCELLED if `cancelled` is not 0, else
       any other error: the host knows the cause. `bytes`: [shim, call, null iff length is 0]. */
    uint32_t (*write)(void *context, const void *bytes, uint64_t length);
    /* Sets the head, at most SW_HEAD_LIMIT bytes; exactly once. `compatibility` uses it. 0: accepted. */
    uint32_t (*head)(void *context, const void *bytes, uint64_t length);
    /* `stage`: [shim, call, never null]; per_mille from 0 to 1000. */
    void (*progress)(void *context, uint32_t per_mille, const char *stage);
    /* Not 0: stop soon and return SW_ERROR_CANCELLED. */
    uint32_t (*cancelled)(void *context);
    void (*flag)(void *context, const sw_flag_verdict *verdict);
    void (*placement)(void *context, const sw_placement *placement);
    /* A chip fact read back from the compiled code, under the name the shim declared. The host compares
       it with the fact of the chip and reports a difference. `fact`: [shim, call, never null]. */
    void (*made_for)(void *context, const sw_option *fact);
} sw_compile_output;

/* ---- Loading and running ---------------------------------------------------------------------------------------------- */

/* A mapped compiled artefact. Everything in it stays readable until unload returns. */
typedef struct sw_artefact {
    uint64_t size;
    const void *head; /* [host, unload, null iff head_length is 0] */
    uint64_t head_length;
    const void *pointer; /* [host, unload, null iff length is 0] at a multiple of 4096, read-only */
    uint64_t length;
    int32_t fd;          /* [host, unload] file behind the mapping; -1: none, for a copy. The shim does not close it */
    uint32_t reserved;
    uint64_t fd_offset;  /* offset of `pointer` in the file: a multiple of 4096, of 16384 if the file is a whole artefact */
} sw_artefact;

typedef struct sw_import {
    uint64_t size;
    uint32_t kind; /* SW_MEMORY_DMA_BUF or SW_MEMORY_HARDWARE_BUFFER */
    int32_t fd;    /* [host, buffer_free] DMA_BUF; else -1. The shim does not close it */
    uint64_t fd_offset;
    void *handle; /* [host, buffer_free, null unless HARDWARE_BUFFER] */
    uint64_t length;
} sw_import;

/* Memory for one binding. */
typedef struct sw_bound {
    uint64_t size;
    sw_buffer *buffer; /* [shim, call, null: host memory] of the same shim and device */
    void *pointer;     /* [host, call, null iff buffer is set or length is 0] */
    uint64_t offset;   /* into buffer; 0 with pointer */
    uint64_t length;   /* at least the binding's bytes */
} sw_bound;

/* Outputs and states must not overlap any other bound memory. Inputs may overlap inputs. */
typedef struct sw_run {
    uint64_t size;
    uint64_t entry; /* index of a loaded entry */
    uint64_t rows;  /* valid rows, 1 … rows of the entry. Further rows are never written to a state and not visible to a valid row */
    const sw_bound *const *bounds; /* [host, call, null iff bound_count is 0] one per binding, in their order */
    uint64_t bound_count;
    uint64_t deadline_nanoseconds; /* from the call; 0: none */
    /* 0: all logits must be exact. Otherwise the number of largest logits of each row that must be exact, with their indices (ties go
     * to the lower index): any other logit may be too small, down to the smallest finite number, but never too large. A shim may ignore it. */
    uint64_t largest_logits;
} sw_run;

/* ---- The table ------------------------------------------------------------------------------------------------------------ */

/* Static for the whole process. Parameters: pointers are [host, call, never null] unless noted otherwise. */
struct sw_table {
    uint64_t size;
    uint32_t version; /* as in the answer */
    uint32_t draft;   /* SW_DRAFT */

    /* Null: errors are static and need no freeing. */
    void (*error_free)(sw_error *error);

    /* [required] Reports one description. Must not touch a device: called to list shims. */
    sw_error *(*describe)(const sw_description_sink *sink);

    /* [required] Makes an instance. Unknown options are an error (INVALID_ARGUMENT), never ignored. `host` as in shardwright_shim_entry. */
    sw_error *(*open)(const sw_host *host, const sw_option *const *options, uint64_t option_count, sw_shim **shim);
    /* [required] */
    void (*close)(sw_shim *shim);

    /* [required] Devices of this machine, or with `soc` (null: this machine) those it can compile for offline or simulate.
       An empty list is valid. */
    sw_error *(*devices)(sw_shim *shim, const char *soc, const sw_device_sink *sink);
    /* Null: no limit is known. */
    sw_error *(*limits)(sw_shim *shim, const char *device, const sw_limit_sink *sink);
    /* Null: the shim has no flags. */
    sw_error *(*flags)(sw_shim *shim, const char *device, const sw_flag_sink *sink);

    /* [required] Reports one verdict per node, in any order; a node without one is refused. An error concerns the entry as
       a whole. Weights may have no data. */
    sw_error *(*check)(sw_shim *shim, const char *device, const sw_entry *entry, const sw_verdict_sink *sink);
    /* Null, or reports nothing: no estimate. */
    sw_error *(*estimate)(sw_shim *shim, const char *device, const sw_entry *entry, const sw_estimate_sink *sink);

    /* Null: the shim only runs artefacts compiled elsewhere. The same order results in the same bytes, at
       least one, and a head. */
    sw_error *(*compile)(sw_shim *shim, const char *device, const sw_work_order *order, const sw_compile_output *output);

    /* [required] Answers from the head alone, without weights. Reports exactly one answer. */
    sw_error *(*compatibility)(sw_shim *shim, const char *device, const void *head, uint64_t head_length,
                               const sw_compatibility_sink *sink);

    /* Null: the shim only compiles; then unload, entries, bindings and run may be null too. Otherwise they are required. */
    sw_error *(*load)(sw_shim *shim, const char *device, const sw_artefact *artefact, const sw_option *const *options,
                      uint64_t option_count, sw_shard **shard);
    /* Not while a run is in progress. */
    void (*unload)(sw_shard *shard);
    sw_error *(*entries)(sw_shard *shard, const sw_loaded_entry_sink *sink);
    sw_error *(*bindings)(sw_shard *shard, uint64_t entry, const sw_binding_sink *sink);

    /* Blocks until done, failed, cancelled or past the deadline. States after an error: rows at and beyond the run's first
       position are undefined, earlier ones intact, unless the class is STATE_LOST or DEVICE_LOST. */
    sw_error *(*run)(sw_shard *shard, const sw_run *run);
    /* Null: runs cannot be cancelled. From any thread: the run in progress, if any, ends soon with CANCELLED. */
    void (*cancel)(sw_shard *shard);

    /* Null: only host memory (and imports) are used; then buffer_free is needed only with buffer_import. Fresh memory is zero. */
    sw_error *(*buffer_allocate)(sw_shim *shim, const char *device, uint64_t length, uint64_t alignment, sw_buffer **buffer);
    /* Null: no import. */
    sw_error *(*buffer_import)(sw_shim *shim, const char *device, const sw_import *import, sw_buffer **buffer);
    void (*buffer_free)(sw_shim *shim, sw_buffer *buffer);
    /* The host's view of a buffer, the same pointer every time, [shim, buffer_free, never null]. Null function: buffers
       cannot be mapped. */
    sw_error *(*buffer_map)(sw_shim *shim, sw_buffer *buffer, void **pointer);
    /* Null: host and device see the same bytes at all times. */
    sw_error *(*buffer_sync)(sw_shim *shim, sw_buffer *buffer, uint64_t offset, uint64_t length, uint32_t direction);

    /* After DEVICE_LOST, once all shards and buffers of the device are gone: makes it usable again, or fails.
       Null: a lost device stays lost for this instance. */
    sw_error *(*recover)(sw_shim *shim, const char *device);

    /* Identifies a file: an artefact of this shim, or any file in a format of its vendor's tools. Reports at most one
       inspection. No inspection, or a null function: the file is not this shim's. An error: it is this shim's, but damaged or
       from another version. The bytes are untrusted. `bytes`: [host, call, null iff length is 0]. */
    sw_error *(*inspect)(sw_shim *shim, const void *bytes, uint64_t length, const sw_inspection_sink *sink);

    /* Null, or reports nothing: the shim reads no facts, and `chip` may be null too. Reports the facts of a chip that the shim
       reads, each name once. Must not touch a device: called to list shims. */
    sw_error *(*facts)(const sw_fact_sink *sink);
    /* Makes a chip known to the instance, before `devices` is called with its name. The last call for a name takes effect. An error
       caused by a fact names it in the detail `fact`, also an error of `devices` for that chip. If the fact may be right, but
       nothing is compiled for such a chip, the error also has a detail `unsupported`. */
    sw_error *(*chip)(sw_shim *shim, const sw_chip *chip);
    /* Outcomes of the stage LOAD flags that a shard was loaded with, each reported once. A flag without a report, or a
       null function: unknown. Not while a run is in progress. */
    sw_error *(*flag_verdicts)(sw_shard *shard, const sw_flag_verdict_sink *sink);
};

#if defined(__GNUC__) || defined(__clang__)
#define SW_EXPORT __attribute__((visibility("default")))
#else
#define SW_EXPORT
#endif

SW_EXPORT void shardwright_shim_entry(const sw_host *host, sw_answer *answer);

#ifdef __cplusplus
}
#endif

#endif /* SHARDWRIGHT_SHIM_H */
