/* A shim that dies, hangs or misbehaves where and how an option of its instance says, and otherwise doubles four numbers.
 *
 * Option `die=<where>:<how>`; `die=run-value:<how>` acts in a run whose first input
 * is negative. With `die=run-largest:` the first result is the number of top logits that the run requests. Option
 * `memory=shim` makes a device that takes only its own memory. With DIE_AT_DOOR=<how> it acts when the library's entry is called, with
 * DIE_AT_DESCRIBE=<how> when it is described. */
#include "shim.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const sw_host *the_host;

struct sw_shim {
    char where[24];
    char how[24];
    int own_memory;
    char chip[32];
    char number[24];
};

struct sw_shard {
    sw_shim *shim;
    atomic_int cancelled;
};

struct sw_buffer {
    uint64_t length;
    void *data;
};

static sw_error *fail(uint32_t error_class, const char *message) {
    sw_error *error = calloc(1, sizeof *error);
    error->size = sizeof *error;
    error->error_class = error_class;
    error->message = message;
    return error;
}

static void error_free(sw_error *error) { free(error); }

static void *print_for_ever(void *unused) {
    for (;;) (void)!write(2, "chatter\n", 8);
    return unused;
}

static volatile int deeper = 1;

static void __attribute__((noinline)) use_up_the_stack(volatile char *above) {
    volatile char page[4096];
    page[0] = above ? above[0] : 1;
    if (deeper) use_up_the_stack(page);
    page[1] = page[0];
}

static volatile uintptr_t nowhere = 16;

/* Does not return, except where a comment says so. */
static void misbehave(const char *how) {
    if (strcmp(how, "abort") == 0) {
        fprintf(stderr, "vendor: assertion failed: tiles > 0\n");
        abort();
    }
    if (strcmp(how, "fpe") == 0) {
        volatile int zero = 0;
        volatile int one = 1;
        zero = one / zero;
        raise(SIGFPE); /* where division by zero is no fault */
    }
    if (strcmp(how, "segv") == 0) *(volatile int *)nowhere = 1;
    if (strcmp(how, "bus") == 0) raise(SIGBUS);
    if (strcmp(how, "kill") == 0) raise(SIGKILL);
    if (strcmp(how, "interrupt") == 0) {
        signal(SIGINT, SIG_DFL); /* ignored where tests run in the background */
        raise(SIGINT);
    }
    if (strcmp(how, "stack") == 0) use_up_the_stack(0);
    if (strcmp(how, "hang") == 0) {
        for (;;) pause();
    }
    if (strcmp(how, "hang-stubborn") == 0) {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, 0);
        signal(SIGTERM, SIG_IGN);
        for (;;) pause();
    }
    if (strcmp(how, "exit") == 0) exit(0);
    if (strcmp(how, "exit-3") == 0) exit(3);
    if (strcmp(how, "grow") == 0) {
        for (;;) {
            char *more = malloc(8 << 20);
            if (!more) abort();
            memset(more, 1, 8 << 20);
        }
    }
    if (strcmp(how, "close") == 0) {
        for (int fd = 0; fd < 4096; fd++) close(fd);
        return; /* and continues */
    }
    if (strcmp(how, "noise") == 0) {
        for (int line = 0; line < 100000; line++) fprintf(stderr, "vendor: line %d of very many lines\n", line);
        return; /* and continues */
    }
    if (strcmp(how, "noise-abort") == 0) {
        for (int line = 0; line < 100000; line++) fprintf(stderr, "vendor: line %d of very many lines\n", line);
        abort();
    }
    if (strcmp(how, "log") == 0) {
        for (int line = 0; line < 10000; line++) {
            char text[64];
            snprintf(text, sizeof text, "line %d of many, long enough to fill every buffer on the way", line);
            the_host->log(the_host->log_context, SW_LOG_DEBUG, text);
        }
        return; /* and continues */
    }
    if (strcmp(how, "chatter") == 0) {
        pthread_t thread;
        pthread_create(&thread, 0, print_for_ever, 0);
        return; /* and continues */
    }
    if (strcmp(how, "fork-exit") == 0) {
        if (fork() == 0) {
            for (;;) pause();
        }
        _exit(0);
    }
    if (strcmp(how, "fork-hang") == 0) {
        fork();
        for (;;) pause();
    }
    if (strcmp(how, "lie") == 0) {
        /* Answers in place of the worker, on every writable descriptor. */
        static const char message[] = "\4\62\0\0\0" "[{\"name\":\"ops\",\"value\":1,\"provenance\":\"declared\"}]";
        for (int fd = 3; fd < 1024; fd++) (void)!write(fd, message, sizeof message - 1);
        for (;;) pause();
    }
    if (strcmp(how, "babble") == 0) {
        for (int fd = 3; fd < 1024; fd++) (void)!write(fd, "\377\377\377\377\377\377\377\377", 8);
        for (;;) pause();
    }
}

static void at(const sw_shim *shim, const char *where) {
    if (strcmp(shim->where, where) == 0) misbehave(shim->how);
}

static sw_error *describe(const sw_description_sink *sink) {
    const sw_description description = {
        .size = sizeof description, .name = "dying", .vendor = "test", .version = "1"};
#ifdef DIE_AT_DESCRIBE
    misbehave(DIE_AT_DESCRIBE);
#endif
    sink->item(sink->context, &description);
    return 0;
}

static sw_error *open_shim(const sw_host *host, const sw_option *const *options, uint64_t count, sw_shim **shim) {
    sw_shim *opened = calloc(1, sizeof *opened);
    the_host = host;
    host->log(host->log_context, SW_LOG_INFO, "dying: opened");
    for (uint64_t i = 0; i < count; i++) {
        const char *value = options[i]->value;
        if (strcmp(options[i]->key, "memory") == 0) opened->own_memory = strcmp(value, "shim") == 0;
        if (strcmp(options[i]->key, "die") == 0) {
            const char *colon = strchr(value, ':');
            if (!colon) return fail(SW_ERROR_INVALID_ARGUMENT, "die=<where>:<how>");
            strncpy(opened->where, value, (size_t)(colon - value) < 23 ? (size_t)(colon - value) : 23);
            strncpy(opened->how, colon + 1, 23);
        }
    }
    at(opened, "open");
    *shim = opened;
    return 0;
}

static void close_shim(sw_shim *shim) {
    at(shim, "close");
    free(shim);
}

static sw_error *facts(const sw_fact_sink *sink) {
    static const char *const colours[2] = {"red", "green"};
    const sw_fact number = {.size = sizeof number, .name = "number", .description = "of the chip", .kind = SW_FLAG_INTEGER,
                            .required = 1, .minimum = 1, .maximum = 99};
    const sw_fact colour = {.size = sizeof colour, .name = "colour", .description = "of its case", .kind = SW_FLAG_CHOICE,
                            .choices = colours, .choice_count = 2, .minimum = 1};
    sink->item(sink->context, &number);
    sink->item(sink->context, &colour);
#ifdef FACT_TWICE
    sink->item(sink->context, &colour);
#endif
    return 0;
}

/* Stores the number of one chip; 13 is rejected, and 14 is unsupported. */
static sw_error *chip(sw_shim *shim, const sw_chip *announced) {
    static const sw_detail fact = {.size = sizeof fact, .key = "fact", .value = "number"};
    static const sw_detail unsupported = {.size = sizeof fact, .key = "unsupported", .value = "true"};
    static const sw_detail *const details[2] = {&fact, &unsupported};
    at(shim, "chip");
    for (uint64_t i = 0; i < announced->fact_count; i++) {
        if (strcmp(announced->facts[i]->key, "number") != 0) continue;
        strncpy(shim->number, announced->facts[i]->value, sizeof shim->number - 1);
    }
    strncpy(shim->chip, announced->name, sizeof shim->chip - 1);
    const int wrong = strcmp(shim->number, "13") == 0, unmade = strcmp(shim->number, "14") == 0;
    if (!wrong && !unmade) return 0;
    sw_error *error = fail(SW_ERROR_INVALID_ARGUMENT, "no such number");
    error->details = details;
    error->detail_count = unmade ? 2 : 1;
    return error;
}

static sw_error *devices(sw_shim *shim, const char *soc, const sw_device_sink *sink) {
    const sw_device device = {.size = sizeof device,
                              .name = "npu",
                              .soc = soc,
                              .detail = soc && strcmp(soc, shim->chip) == 0 ? shim->number : 0,
                              .kind = SW_DEVICE_PRESENT,
                              .memory_kinds = shim->own_memory ? SW_MEMORY_SHIM : SW_MEMORY_HOST};
    at(shim, "devices");
    sink->item(sink->context, &device);
    return 0;
}

static sw_error *limits(sw_shim *shim, const char *device, const sw_limit_sink *sink) {
    (void)device, (void)sink;
    at(shim, "limits");
    return 0;
}

static sw_error *flags(sw_shim *shim, const char *device, const sw_flag_sink *sink) {
    (void)device, (void)sink;
    at(shim, "flags");
    return 0;
}

static sw_error *check(sw_shim *shim, const char *device, const sw_entry *entry, const sw_verdict_sink *sink) {
    (void)device;
    at(shim, "check");
    if (strcmp(shim->where, "check-weights") == 0 && entry->constant_count > 0) {
        /* Refuses the first nodes, saying of each constant what is shown of it. */
        for (uint64_t i = 0; i < entry->constant_count && i < entry->node_count; i++) {
            const sw_weight *weight = entry->constants[i]->weight;
            const sw_quantisation *scheme = weight->quantisation;
            char reason[512];
            int length = snprintf(reason, sizeof reason, "%s %s type %u, %lu bytes, rank %u", weight->name, weight->part,
                                  weight->dtype, (unsigned long)weight->length, weight->rank);
            if (scheme) {
                snprintf(reason + length, sizeof reason - (size_t)length,
                         ": kind %u axis %u block %lu, %lu scales of type %u, %u bits, zero %d", scheme->kind, scheme->axis,
                         (unsigned long)scheme->block, (unsigned long)scheme->scale_count, scheme->scale_dtype, scheme->bits,
                         scheme->zero_point_count ? scheme->zero_points[0] : 0);
            }
            const sw_verdict verdict = {
                .size = sizeof verdict, .node = i, .verdict = SW_VERDICT_REFUSED, .reason = reason};
            sink->item(sink->context, &verdict);
        }
        return 0;
    }
    for (uint64_t i = 0; i < entry->node_count; i++) {
        const sw_verdict verdict = {.size = sizeof verdict, .node = i, .verdict = SW_VERDICT_TAKEN};
        sink->item(sink->context, &verdict);
    }
    return 0;
}

static sw_error *estimate(sw_shim *shim, const char *device, const sw_entry *entry, const sw_estimate_sink *sink) {
    (void)device, (void)entry, (void)sink;
    at(shim, "estimate");
    return 0;
}

static sw_error *compile(sw_shim *shim, const char *device, const sw_work_order *order, const sw_compile_output *out) {
    (void)device, (void)order;
    at(shim, "compile");
    if (strcmp(shim->where, "compile-deaf") == 0) {
        for (;;) out->progress(out->context, 500, "never ending");
    }
    while (strcmp(shim->where, "compile-polite") == 0) {
        out->progress(out->context, 500, "waiting");
        if (out->cancelled(out->context)) return fail(SW_ERROR_CANCELLED, "cancelled");
        usleep(1000);
    }
    static const char large[3 << 20];
    if (strcmp(shim->where, "compile-large") == 0 && out->write(out->context, large, sizeof large)) {
        return fail(SW_ERROR_INTERNAL, "the host takes no more");
    }
    if (out->write(out->context, "doubling", 8)) return fail(SW_ERROR_INTERNAL, "the host takes no more");
    out->progress(out->context, 500, "half");
    at(shim, "compile-half");
    const int whole = strcmp(shim->where, "compile-short") != 0;
    if (whole && out->write(out->context, "by two..", 8)) return fail(SW_ERROR_INTERNAL, "the host takes no more");
    at(shim, "compile-headless");
    out->head(out->context, "16", 2);
    const sw_placement placement = {.size = sizeof placement, .place = "npu", .reason = "whole"};
    out->placement(out->context, &placement);
    if (shim->number[0]) {
        /* The compiler knows 7 alone. */
        const sw_option made = {.size = sizeof made, .key = "number", .value = "7"};
        out->made_for(out->context, &made);
    }
    if (strcmp(shim->where, "compile-strange") == 0) {
        const sw_option strange = {.size = sizeof strange, .key = "weight", .value = "7"};
        out->made_for(out->context, &strange);
    }
    at(shim, "compile-end");
    return 0;
}

static sw_error *compatibility(sw_shim *shim, const char *device, const void *head, uint64_t length,
                               const sw_compatibility_sink *sink) {
    (void)device, (void)head;
    at(shim, "compatibility");
    const sw_compatibility item = {
        .size = sizeof item, .answer = length == 2 ? SW_COMPATIBILITY_OPTIMAL : SW_COMPATIBILITY_UNSUPPORTED};
    sink->item(sink->context, &item);
    return 0;
}

static sw_error *load(sw_shim *shim, const char *device, const sw_artefact *artefact, const sw_option *const *options,
                      uint64_t count, sw_shard **shard) {
    (void)device, (void)options, (void)count;
    at(shim, "load");
    if (artefact->length < 16 || memcmp((const char *)artefact->pointer + artefact->length - 16, "doublingby two..", 16)) {
        return fail(SW_ERROR_CORRUPT_ARTEFACT, "the artefact is not as long as its head says");
    }
    *shard = calloc(1, sizeof **shard);
    (*shard)->shim = shim;
    return 0;
}

static sw_error *flag_verdicts(sw_shard *shard, const sw_flag_verdict_sink *sink) {
    const sw_flag_verdict verdict = {
        .size = sizeof verdict, .name = "power", .verdict = SW_FLAG_INERT, .evidence = "nothing changes"};
    (void)shard;
    sink->item(sink->context, &verdict);
    return 0;
}

static void unload(sw_shard *shard) {
    at(shard->shim, "unload");
    free(shard);
}

static sw_error *entries(sw_shard *shard, const sw_loaded_entry_sink *sink) {
    const sw_loaded_entry entry = {
        .size = sizeof entry, .name = "encode_4", .rows = 4, .context = 4, .binding_count = 2};
    at(shard->shim, "entries");
    sink->item(sink->context, &entry);
    return 0;
}

static sw_error *bindings(sw_shard *shard, uint64_t entry, const sw_binding_sink *sink) {
    static const uint64_t shape[2] = {4, 1};
    (void)entry;
    at(shard->shim, "bindings");
    sw_binding item = {.size = sizeof item,
                       .name = "x",
                       .direction = SW_BINDING_INPUT,
                       .role = SW_ROLE_HIDDEN,
                       .dtype = SW_DTYPE_F32,
                       .shape = shape,
                       .rank = 2,
                       .bytes = 16,
                       .alignment = 16,
                       .memory_kinds = shard->shim->own_memory ? SW_MEMORY_SHIM : SW_MEMORY_HOST,
                       .scale = 1};
    sink->item(sink->context, &item);
    item.index = 1;
    item.name = "y";
    item.direction = SW_BINDING_OUTPUT;
    sink->item(sink->context, &item);
    return 0;
}

static float *memory_of(const sw_bound *bound) {
    char *start = bound->buffer ? bound->buffer->data : bound->pointer;
    return (float *)(start + (bound->buffer ? bound->offset : 0));
}

static sw_error *run(sw_shard *shard, const sw_run *run) {
    const sw_shim *shim = shard->shim;
    float *x = memory_of(run->bounds[0]), *y = memory_of(run->bounds[1]);
    if (!shim->own_memory != !run->bounds[0]->buffer) return fail(SW_ERROR_INVALID_ARGUMENT, "memory of the wrong kind");
    atomic_store(&shard->cancelled, 0);
    at(shim, "run");
    if (x[0] < 0) at(shim, "run-value");
    while (strcmp(shim->where, "run-polite") == 0) {
        if (atomic_load(&shard->cancelled)) return fail(SW_ERROR_CANCELLED, "cancelled");
        usleep(1000);
    }
    if (strcmp(shim->where, "run-behind") == 0) ((volatile char *)y)[atoi(shim->how)] = 1;
    if (strcmp(shim->where, "run-before") == 0) ((volatile char *)y)[-atoi(shim->how)] = 1;
    if (strcmp(shim->where, "run-input") == 0) ((volatile char *)x)[atoi(shim->how)] = 1;
    for (uint64_t i = 0; i < run->rows; i++) y[i] = 2 * x[i];
    if (strcmp(shim->where, "run-largest") == 0) y[0] = (float)run->largest_logits;
    at(shim, "run-end");
    return 0;
}

static void cancel(sw_shard *shard) {
    at(shard->shim, "cancel");
    atomic_store(&shard->cancelled, 1);
}

static sw_error *buffer_allocate(sw_shim *shim, const char *device, uint64_t length, uint64_t alignment,
                                 sw_buffer **buffer) {
    (void)device;
    at(shim, "allocate");
    sw_buffer *made = calloc(1, sizeof *made);
    made->length = length;
    made->data = aligned_alloc(alignment < 16 ? 16 : alignment, (length + alignment) / alignment * alignment);
    memset(made->data, 0, length);
    *buffer = made;
    return 0;
}

static void buffer_free(sw_shim *shim, sw_buffer *buffer) {
    (void)shim;
    free(buffer->data);
    free(buffer);
}

static sw_error *buffer_map(sw_shim *shim, sw_buffer *buffer, void **pointer) {
    (void)shim;
    *pointer = buffer->data;
    return 0;
}

static sw_error *recover(sw_shim *shim, const char *device) {
    (void)device;
    at(shim, "recover");
    return 0;
}

static sw_error *inspect(sw_shim *shim, const void *bytes, uint64_t length, const sw_inspection_sink *sink) {
    at(shim, "inspect");
    if (length < 5 || memcmp(bytes, "DYING", 5) != 0) return 0;
    const sw_inspection item = {.size = sizeof item, .format = "dying-file", .document = "{\"graphs\":[]}"};
    sink->item(sink->context, &item);
    return 0;
}

static const sw_table TABLE = {
    .size = sizeof(sw_table),
    .version = SW_VERSION,
    .draft = SW_DRAFT,
    .error_free = error_free,
    .describe = describe,
    .open = open_shim,
    .close = close_shim,
    .devices = devices,
    .limits = limits,
    .flags = flags,
    .check = check,
    .estimate = estimate,
    .compile = compile,
    .compatibility = compatibility,
    .load = load,
    .unload = unload,
    .entries = entries,
    .bindings = bindings,
    .run = run,
    .cancel = cancel,
    .buffer_allocate = buffer_allocate,
    .buffer_free = buffer_free,
    .buffer_map = buffer_map,
    .recover = recover,
    .inspect = inspect,
    .facts = facts,
#ifndef NO_CHIP
    .chip = chip,
#endif
    .flag_verdicts = flag_verdicts,
};

void shardwright_shim_entry(const sw_host *host, sw_answer *answer) {
    (void)host;
#ifdef DIE_AT_DOOR
    misbehave(DIE_AT_DOOR);
#endif
    answer->version_min = SW_VERSION;
    answer->version_max = SW_VERSION;
    answer->version = SW_VERSION;
    answer->table = &TABLE;
}
