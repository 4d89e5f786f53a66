/* A test chip: the CPU shim under another name, which fails in a run as a file says.
 *
 * CPU_SHIM is the path of the CPU shim's library and ORDERS that of the file, which is read when an instance is opened: a way to fail and the number of
 * the run, counted from there, such as `abort 7`; or an answer about artefacts, such as `recompile 0`; or `slip 0`. Without the file it behaves as
 * the CPU. `broken 0` is a chip whose library is missing, `offline 0` one that is only compiled for and simulated in this machine;
 * `sibling 0` another chip of the same architecture, which takes what was compiled for this one;
 * `refuses N` a compiler that finds no place for a linear operation of layer N, in any shard; `no-tangent 0` one that supports neither a soft-cap nor a hyperbolic tangent; `gaps 0` one that lacks transposition and GELU as well; `estimates 0` one that estimates, and notes each in a file beside ORDERS; `heavy N` one that estimates by operations alone and takes 20 ms for a run of a shard with more than N bytes. Files that begin with CHIP are its vendor's. The name of shim and chip is
 * NAME. What it computes wrongly stands in `ORDERS.faults` (faults.h). */
#include "shim.h"
#include "faults.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const sw_table *cpu;
static sw_table mine;

static char how[16];
static unsigned long doomed;
static atomic_ulong runs;

/* Shards of a heavy chip that take their time. */
#define HEAVY_MAX 64
static _Atomic(sw_shard *) heavy[HEAVY_MAX];
static atomic_uint heavy_count;

static sw_error lost = {
    .size = sizeof lost,
    .error_class = SW_ERROR_DEVICE_LOST,
    .message = "the chip fell off its bus",
};

static const sw_detail library = {.size = sizeof library, .key = "library", .value = "libchip.so"};
static const sw_detail *const details[1] = {&library};
static sw_error broken = {
    .size = sizeof broken,
    .error_class = SW_ERROR_INTERNAL,
    .message = "libchip.so is not where it should be",
    .details = details,
    .detail_count = 1,
};
static char layer_text[24];
static unsigned long refused_layer;
static const sw_detail place_of[2] = {
    {.size = sizeof(sw_detail), .key = "op", .value = "linear"},
    {.size = sizeof(sw_detail), .key = "layer", .value = layer_text},
};
static const sw_detail *const place[2] = {&place_of[0], &place_of[1]};
static sw_error unplaced = {
    .size = sizeof unplaced,
    .error_class = SW_ERROR_UNSUPPORTED_OP,
    .message = "no place for a linear operation",
    .log_tail = "graph prepare failed 12",
    .details = place,
    .detail_count = 2,
};
static sw_error cut = {
    .size = sizeof cut,
    .error_class = SW_ERROR_CORRUPT_ARTEFACT,
    .message = "the file of the chip ends early",
};

static sw_error elsewhere = {
    .size = sizeof elsewhere,
    .error_class = SW_ERROR_INVALID_ARGUMENT,
    .message = "there is no such device in this chip",
};

static void error_free(sw_error *error) {
    if (error != &lost && error != &broken && error != &cut && error != &unplaced && error != &elsewhere && !is_fault(error) && cpu->error_free) cpu->error_free(error);
}

static int is(const char *order) { return strcmp(how, order) == 0; }

#define SIMULATED NAME ".simulated"
/* The device of a chip that is another of the same architecture. */
#define OTHER NAME ".other"

static sw_error *describe(const sw_description_sink *sink) {
    const sw_description description = {.size = sizeof description, .name = NAME, .vendor = "test", .version = "1"};
    sink->item(sink->context, &description);
    return NULL;
}

static sw_error *open_shim(const sw_host *host, const sw_option *const *options, uint64_t count, sw_shim **shim) {
    FILE *orders = fopen(ORDERS, "r");
    doomed = 0;
    how[0] = 0;
    atomic_store(&runs, 0);
    if (orders) {
        if (fscanf(orders, "%15s %lu", how, &doomed) != 2) doomed = 0;
        fclose(orders);
    }
    if (is("broken")) return &broken;
    if (is("refuses")) refused_layer = doomed, doomed = 0;
    return cpu->open(host, options, count, shim);
}

/* Lists the CPU as the chip's device; other chips have none. */
static sw_error *devices(sw_shim *shim, const char *soc, const sw_device_sink *sink) {
    (void)shim;
    if (soc && strcmp(soc, NAME) != 0) return NULL;
    if (is("offline")) {
        const sw_device own = {.size = sizeof own,
                               .name = NAME,
                               .soc = NAME,
                               .kind = SW_DEVICE_OFFLINE,
                               .memory_kinds = SW_MEMORY_HOST};
        const sw_device simulated = {.size = sizeof simulated,
                                     .name = SIMULATED,
                                     .soc = NAME,
                                     .detail = "its weights are not shared",
                                     .kind = SW_DEVICE_SIMULATED,
                                     .memory_kinds = SW_MEMORY_HOST};
        if (soc) {
            sink->item(sink->context, &own);
            sink->item(sink->context, &simulated);
        }
        return NULL;
    }
    const struct fault *driver = fault_of(read_faults(), "driver");
    const sw_device device = {.size = sizeof device,
                              .name = is("sibling") ? OTHER : "cpu",
                              .soc = NAME,
                              .detail = driver ? driver->name : "the CPU under another name",
                              .kind = SW_DEVICE_PRESENT,
                              .memory_kinds = SW_MEMORY_HOST};
    sink->item(sink->context, &device);
    return NULL;
}

/* Returns an error, or null if the failure goes unnoticed; other failures do not return. */
static sw_error *die(const sw_run *run) {
    if (strcmp(how, "abort") == 0) {
        fprintf(stderr, "chip: assertion failed: the die is cast\n");
        abort();
    }
    if (strcmp(how, "overrun") == 0) {
        const sw_bound *last = run->bounds[run->bound_count - 1];
        volatile char *behind = (char *)last->pointer + last->length;
        for (int i = 0; i < 8192; i++) behind[i] = 1;
    }
    if (strcmp(how, "hang") == 0) {
        for (;;) pause();
    }
    return strcmp(how, "lost") == 0 ? &lost : NULL;
}

static sw_error *compatibility(sw_shim *shim, const char *device, const void *head, uint64_t length,
                               const sw_compatibility_sink *sink) {
    (void)device;
    sw_compatibility answer = {.size = sizeof answer, .reason = "the chip's compiler has moved on"};
    if (strcmp(how, "recompile") == 0) answer.answer = SW_COMPATIBILITY_RECOMPILE;
    if (strcmp(how, "unsupported") == 0) answer.answer = SW_COMPATIBILITY_UNSUPPORTED;
    if (strcmp(how, "not-mine") == 0) answer.answer = SW_COMPATIBILITY_NOT_MINE;
    if (!answer.answer) return cpu->compatibility(shim, "cpu", head, length, sink);
    sink->item(sink->context, &answer);
    return NULL;
}

/* Places the first node of each work order's first entry on the CPU, without a request, if ORDERS says `slip`. */
static sw_error *compile(sw_shim *shim, const char *device, const sw_work_order *order, const sw_compile_output *out) {
    (void)device;
    if (is("refuses")) {
        const sw_entry *entry = order->entries[0];
        for (uint64_t node = 0; node < entry->node_count; node++) {
            if (entry->nodes[node]->op == SW_OP_LINEAR && entry->nodes[node]->layer == (int64_t)refused_layer) {
                snprintf(layer_text, sizeof layer_text, "%lu", refused_layer);
                return &unplaced;
            }
        }
    }
    sw_error *error = compile_with_faults(cpu, shim, order, out);
    if (error || strcmp(how, "slip") != 0) return error;
    const sw_placement placement = {.size = sizeof placement, .place = "cpu", .reason = "the chip was not in the mood"};
    out->placement(out->context, &placement);
    return NULL;
}

static sw_error *limits(sw_shim *shim, const char *device, const sw_limit_sink *sink) {
    (void)device;
    return cpu->limits(shim, "cpu", sink);
}

static sw_error *flags(sw_shim *shim, const char *device, const sw_flag_sink *sink) {
    (void)device;
    return cpu->flags(shim, "cpu", sink);
}

struct asked {
    const sw_entry *entry;
    const sw_verdict_sink *sink;
};

/* Passes a verdict on, but refuses what ORDERS says the chip lacks. */
static void with_gaps(void *context, const sw_verdict *verdict) {
    const struct asked *asked = context;
    const uint32_t op = asked->entry->nodes[verdict->node]->op;
    sw_verdict answered = *verdict;
    const char *lacks = NULL;
    if (op == SW_OP_SOFTCAP || op == SW_OP_TANH) lacks = "the chip has no hyperbolic tangent";
    if (is("gaps") && op == SW_OP_TRANSPOSE) lacks = "the chip moves no axes";
    if (is("gaps") && op == SW_OP_GELU) lacks = "the chip has no GELU";
    if (lacks) {
        answered.verdict = SW_VERDICT_REFUSED;
        answered.reason = lacks;
    }
    asked->sink->item(asked->sink->context, &answered);
}

static sw_error *check(sw_shim *shim, const char *device, const sw_entry *entry, const sw_verdict_sink *sink) {
    (void)device;
    if (!is("no-tangent") && !is("gaps")) return cpu->check(shim, "cpu", entry, sink);
    struct asked asked = {.entry = entry, .sink = sink};
    const sw_verdict_sink own = {.size = sizeof own, .context = &asked, .item = with_gaps};
    return cpu->check(shim, "cpu", entry, &own);
}

static sw_error *estimate(sw_shim *shim, const char *device, const sw_entry *entry, const sw_estimate_sink *sink) {
    (void)shim;
    if (!is("estimates") && !is("heavy")) return NULL;
    FILE *asked = fopen(ORDERS ".asked", "a");
    if (asked) {
        fprintf(asked, "%s %s\n", device, entry->name);
        fclose(asked);
    }
    const sw_estimate cost = {.size = sizeof cost,
                              .time_microseconds = is("heavy") ? 1 + entry->node_count / 32 : 10 + entry->node_count,
                              .provenance = SW_PROVENANCE_SIMULATED,
                              .bytes_moved = 1000};
    sink->item(sink->context, &cost);
    return NULL;
}

static sw_error *load(sw_shim *shim, const char *device, const sw_artefact *artefact, const sw_option *const *options,
                      uint64_t count, sw_shard **shard) {
    if (is("sibling") && strcmp(device, OTHER) != 0) return &elsewhere;
    sw_error *error = load_with_faults(artefact);
    if (error) return error;
    error = cpu->load(shim, "cpu", artefact, options, count, shard);
    if (!error && is("heavy") && artefact->length > doomed) {
        unsigned place = atomic_fetch_add(&heavy_count, 1);
        if (place < HEAVY_MAX) heavy[place] = *shard;
    }
    return error;
}

static sw_error *allocate(sw_shim *shim, const char *device, uint64_t length, uint64_t alignment, sw_buffer **buffer) {
    (void)device;
    return cpu->buffer_allocate(shim, "cpu", length, alignment, buffer);
}

static sw_error *inspect(sw_shim *shim, const void *bytes, uint64_t length, const sw_inspection_sink *sink) {
    (void)shim;
    const sw_inspection inspection = {
        .size = sizeof inspection,
        .format = "chip-binary",
        .document = "{\"chip\": \"" NAME "\", \"build\": {\"id\": \"v1\", \"year\": 2026}, \"graphs\": [{\"name\": \"decode_1\", "
                    "\"inputs\": [{\"name\": \"hidden\", \"dtype\": \"u16\", \"shape\": [1, 64]}], \"outputs\": []}]}",
    };
    if (length < 4 || memcmp(bytes, "CHIP", 4) != 0) return NULL;
    if (length < 8) return &cut;
    sink->item(sink->context, &inspection);
    return NULL;
}

static sw_error *run_shard(sw_shard *shard, const sw_run *run) {
    for (unsigned place = 0; is("heavy") && place < HEAVY_MAX; place++) {
        if (heavy[place] == shard) usleep(20000);
    }
    if (!is("heavy") && atomic_fetch_add(&runs, 1) + 1 == doomed) {
        sw_error *error = die(run);
        if (error) return error;
    }
    const struct fault *slow = fault_of(read_faults(), "slow");
    if (slow) usleep((useconds_t)slow->bits);
    return cpu->run(shard, run);
}

SW_EXPORT void shardwright_shim_entry(const sw_host *host, sw_answer *answer) {
    void *library = dlopen(CPU_SHIM, RTLD_NOW | RTLD_LOCAL);
    sw_entry_function entry = library ? (sw_entry_function)dlsym(library, SW_ENTRY_SYMBOL) : NULL;
    if (!entry) {
        answer->version_min = answer->version_max = SW_VERSION;
        answer->refusal = "there is no CPU shim at " CPU_SHIM;
        return;
    }
    entry(host, answer);
    if (!answer->table) return;
    /* A library of another draft may have a smaller table, or another order in it. */
    if (answer->table->size < sizeof mine || answer->table->draft != SW_DRAFT) {
        answer->table = NULL;
        answer->refusal = "the CPU shim at " CPU_SHIM " is of another draft of the contract";
        return;
    }
    cpu = answer->table;
    mine = *cpu;
    mine.error_free = error_free;
    mine.describe = describe;
    mine.open = open_shim;
    mine.devices = devices;
    mine.compatibility = compatibility;
    mine.compile = compile;
    mine.limits = cpu->limits ? limits : NULL;
    mine.flags = cpu->flags ? flags : NULL;
    mine.check = check;
    mine.estimate = estimate;
    mine.load = load;
    mine.buffer_allocate = cpu->buffer_allocate ? allocate : NULL;
    mine.inspect = inspect;
    mine.run = run_shard;
    answer->table = &mine;
}
