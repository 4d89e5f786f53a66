/* A shim that breaks the contract wherever the instance option `fault` says, and otherwise doubles four numbers. */
#include "shim.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct sw_shim {
    char fault[32];
};

struct sw_shard {
    sw_shim *shim;
    atomic_int cancelled;
    atomic_int runs;
    int power;
};

struct sw_buffer {
    uint64_t length;
    void *data;
    uint64_t synced[2];
};

static int is(const sw_shim *shim, const char *fault) { return strcmp(shim->fault, fault) == 0; }

static sw_error *fail(uint32_t error_class, const char *message) {
    static const sw_detail details[3] = {
        {.size = sizeof(sw_detail), .key = "limit", .value = "ops"},
        {.size = sizeof(sw_detail), .key = "value", .value = "4821"},
        {.size = sizeof(sw_detail), .key = "max", .value = "4000"},
    };
    static const sw_detail *const pointers[3] = {&details[0], &details[1], &details[2]};
    sw_error *error = calloc(1, sizeof *error);
    error->size = sizeof *error;
    error->error_class = error_class;
    error->vendor_code = 6;
    error->message = message;
    error->log_tail = "NoExecPlan\n\xff";
    error->details = pointers;
    error->detail_count = 3;
    return error;
}

static void error_free(sw_error *error) { free(error); }

static sw_error *describe(const sw_description_sink *sink) {
    const sw_description description = {.size = sizeof description,
                                        .name = "faulty",
                                        .vendor = "test",
                                        .version = "1",
                                        .vendor_library = "libvendor.so 7.3",
                                        .instance_limit = 8};
    sink->item(sink->context, &description);
    return 0;
}

static sw_error *open_shim(const sw_host *host, const sw_option *const *options, uint64_t count, sw_shim **shim) {
    sw_shim *opened = calloc(1, sizeof *opened);
    host->log(host->log_context, SW_LOG_INFO, "faulty: opened");
    for (uint64_t i = 0; i < count; i++) {
        if (strcmp(options[i]->key, "fault") == 0) strncpy(opened->fault, options[i]->value, sizeof opened->fault - 1);
    }
    if (is(opened, "open-null")) {
        free(opened);
        return 0;
    }
    *shim = opened;
    return 0;
}

static void close_shim(sw_shim *shim) { free(shim); }

static sw_error *devices(sw_shim *shim, const char *soc, const sw_device_sink *sink) {
    sw_device device = {.size = sizeof device,
                        .name = "npu",
                        .soc = soc,
                        .kind = soc ? SW_DEVICE_OFFLINE : SW_DEVICE_PRESENT,
                        .memory_kinds = SW_MEMORY_SHIM};
    if (is(shim, "device-kind")) device.kind = 77;
    if (is(shim, "device-name")) device.name = 0;
    if (is(shim, "device-size")) device.size = 16;
    sink->item(sink->context, &device);
    return 0;
}

static sw_error *limits(sw_shim *shim, const char *device, const sw_limit_sink *sink) {
    (void)device;
    const sw_limit limit = {.size = sizeof limit,
                            .name = "ops",
                            .value = 4000,
                            .provenance = is(shim, "limit-provenance") ? 99 : SW_PROVENANCE_PROBED,
                            .note = "by bisection"};
    sink->item(sink->context, &limit);
    return 0;
}

static sw_error *flags(sw_shim *shim, const char *device, const sw_flag_sink *sink) {
    static const char *const choices[2] = {"LTS", "Inception"};
    (void)device;
    sw_flag flag = {.size = sizeof flag,
                    .name = "opt",
                    .description = "effort",
                    .kind = SW_FLAG_INTEGER,
                    .standard = "2",
                    .minimum = 0,
                    .maximum = 3};
    sink->item(sink->context, &flag);
    flag.name = "gno";
    flag.kind = is(shim, "flag-kind") ? 42 : SW_FLAG_CHOICE;
    flag.standard = 0;
    flag.choices = choices;
    flag.choice_count = 2;
    sink->item(sink->context, &flag);
    flag.name = "power";
    flag.stage = is(shim, "flag-stage") ? 7 : SW_FLAG_STAGE_LOAD;
    sink->item(sink->context, &flag);
    return 0;
}

static sw_error *check(sw_shim *shim, const char *device, const sw_entry *entry, const sw_verdict_sink *sink) {
    (void)device;
    if (is(shim, "unmappable")) return fail(SW_ERROR_UNMAPPABLE, "the compiler found no execution plan");
    if (is(shim, "error-size")) {
        sw_error *error = fail(SW_ERROR_INTERNAL, "short");
        error->size = 8;
        return error;
    }
    for (uint64_t i = 0; i < entry->node_count; i++) {
        sw_verdict verdict = {.size = sizeof verdict, .node = i, .verdict = SW_VERDICT_TAKEN};
        if (is(shim, "verdict-node")) verdict.node = entry->node_count;
        if (is(shim, "verdict-twice")) verdict.node = 0;
        if (is(shim, "verdict-kind")) verdict.verdict = 9;
        if (is(shim, "verdict-reason")) verdict.verdict = SW_VERDICT_REFUSED;
        if (is(shim, "verdict-missing") && i > 0) break;
        sink->item(sink->context, &verdict);
        if (is(shim, "verdict-twice")) sink->item(sink->context, &verdict);
    }
    return 0;
}

static sw_error *estimate(sw_shim *shim, const char *device, const sw_entry *entry, const sw_estimate_sink *sink) {
    (void)device;
    const uint64_t uncosted[1] = {is(shim, "estimate-node") ? entry->node_count : 0};
    const sw_estimate item = {.size = sizeof item,
                              .time_microseconds = 14300,
                              .provenance = SW_PROVENANCE_SIMULATED,
                              .uncosted = uncosted,
                              .uncosted_count = 1};
    if (!is(shim, "estimate-none")) sink->item(sink->context, &item);
    if (is(shim, "estimate-twice")) sink->item(sink->context, &item);
    return 0;
}

static sw_error *compile(sw_shim *shim, const char *device, const sw_work_order *order, const sw_compile_output *out) {
    static char head[SW_HEAD_LIMIT + 1];
    (void)device;
    if (is(shim, "compile-fails")) {
        out->write(out->context, "half", 4);
        return fail(SW_ERROR_RESOURCE_LIMIT, "4821 operations, at most 4000");
    }
    for (uint32_t i = 0; i < 1000 && is(shim, "compile-long"); i++) {
        out->progress(out->context, i, "searching");
        if (out->cancelled(out->context)) return fail(SW_ERROR_CANCELLED, "cancelled");
    }
    if (is(shim, "write-null")) out->write(out->context, 0, 4);
    if (!is(shim, "write-nothing") && out->write(out->context, order->name, 64)) return fail(SW_ERROR_INTERNAL, "the host takes no more");
    if (!is(shim, "head-none")) out->head(out->context, head, is(shim, "head-long") ? sizeof head : 4);
    if (is(shim, "head-twice")) out->head(out->context, head, 4);
    sw_flag_verdict verdict = {.size = sizeof verdict,
                               .name = "opt",
                               .verdict = is(shim, "flag-verdict") ? 50 : SW_FLAG_APPLIED,
                               .evidence = "kernel count fell from 40 to 31"};
    if (is(shim, "flag-null")) verdict.evidence = 0;
    if (is(shim, "flag-blank")) verdict.evidence = " \t\n";
    if (is(shim, "flag-unproved")) verdict.verdict = SW_FLAG_REFUSED, verdict.evidence = 0;
    out->flag(out->context, &verdict);
    if (is(shim, "flag-twice")) verdict.verdict = SW_FLAG_REFUSED, out->flag(out->context, &verdict);
    const sw_placement placement = {.size = sizeof placement,
                                    .entry = 0,
                                    .node = is(shim, "placement-node") ? 1000 : 0,
                                    .place = "cpu",
                                    .reason = "bridged"};
    out->placement(out->context, &placement);
    return 0;
}

static sw_error *compatibility(sw_shim *shim, const char *device, const void *head, uint64_t length,
                               const sw_compatibility_sink *sink) {
    (void)device, (void)head;
    sw_compatibility item = {.size = sizeof item, .answer = SW_COMPATIBILITY_RECOMPILE, .reason = "driver is newer"};
    if (length != 4) item.answer = SW_COMPATIBILITY_UNSUPPORTED;
    if (is(shim, "compatibility")) item.answer = 12;
    if (!is(shim, "compatibility-none")) sink->item(sink->context, &item);
    return 0;
}

static sw_error *load(sw_shim *shim, const char *device, const sw_artefact *artefact, const sw_option *const *options,
                      uint64_t count, sw_shard **shard) {
    (void)device;
    if (is(shim, "load-null")) return 0;
    if ((uintptr_t)artefact->pointer % 4096 != 0 || artefact->length != 64 || artefact->fd < 0 ||
        artefact->fd_offset != 16384) {
        return fail(SW_ERROR_INVALID_ARGUMENT, "the mapping is not as promised");
    }
    *shard = calloc(1, sizeof **shard);
    (*shard)->shim = shim;
    for (uint64_t i = 0; i < count; i++) {
        if (strcmp(options[i]->key, "power") == 0) (*shard)->power = strcmp(options[i]->value, "Inception") == 0 ? 2 : 1;
    }
    return 0;
}

/* On the flag `power`, if it was passed. */
static sw_error *flag_verdicts(sw_shard *shard, const sw_flag_verdict_sink *sink) {
    sw_flag_verdict verdict = {.size = sizeof verdict,
                               .name = "power",
                               .verdict = is(shard->shim, "load-verdict") ? 50 : SW_FLAG_RECORDED,
                               .evidence = shard->power == 2 ? "it says Inception" : "it says LTS"};
    if (is(shard->shim, "load-verdict-size")) verdict.size = 8;
    if (shard->power) sink->item(sink->context, &verdict);
    return 0;
}

static void unload(sw_shard *shard) { free(shard); }

static sw_error *entries(sw_shard *shard, const sw_loaded_entry_sink *sink) {
    sw_loaded_entry entry = {
        .size = sizeof entry, .name = "encode_4", .rows = 4, .context = 4, .binding_count = 2};
    if (is(shard->shim, "entry-index")) entry.index = 5;
    if (is(shard->shim, "entry-name")) entry.name = "encode_5";
    if (is(shard->shim, "entry-rows")) entry.rows = 5;
    if (is(shard->shim, "entry-count")) entry.binding_count = 3;
    if (!is(shard->shim, "entry-none")) sink->item(sink->context, &entry);
    return 0;
}

static sw_error *bindings(sw_shard *shard, uint64_t entry, const sw_binding_sink *sink) {
    static const uint64_t shape[2] = {4, 1}, wide[2] = {4, 2}, strides[2] = {100, 1};
    const sw_shim *shim = shard->shim;
    (void)entry;
    sw_binding item = {.size = sizeof item,
                       .name = "x",
                       .direction = SW_BINDING_INPUT,
                       .role = SW_ROLE_HIDDEN,
                       .dtype = SW_DTYPE_F32,
                       .shape = shape,
                       .rank = 2,
                       .bytes = 16,
                       .alignment = 16,
                       .memory_kinds = SW_MEMORY_SHIM,
                       .scale = 1};
    if (is(shim, "binding-index")) item.index = 1;
    if (is(shim, "binding-name")) item.name = "z";
    if (is(shim, "binding-direction")) item.direction = SW_BINDING_STATE;
    if (is(shim, "binding-role")) item.role = SW_ROLE_LOGITS;
    if (is(shim, "binding-dtype")) item.dtype = SW_DTYPE_F16;
    if (is(shim, "binding-scale")) item.scale = 0.5;
    if (is(shim, "binding-shape")) item.shape = wide;
    if (is(shim, "binding-bytes")) item.bytes = 12;
    if (is(shim, "binding-strides")) item.strides = strides;
    if (is(shim, "binding-alignment")) item.alignment = 3;
    if (is(shim, "binding-update")) item.update = 9;
    sink->item(sink->context, &item);
    item.index = 1;
    item.name = is(shim, "binding-twice") ? "x" : "y";
    item.direction = SW_BINDING_OUTPUT;
    if (!is(shim, "binding-missing")) sink->item(sink->context, &item);
    return 0;
}

static sw_error *run(sw_shard *shard, const sw_run *run) {
    const sw_shim *shim = shard->shim;
    atomic_store(&shard->cancelled, 0);
    atomic_fetch_add(&shard->runs, 1);
    while (is(shim, "run-long")) {
        if (atomic_load(&shard->cancelled)) return fail(SW_ERROR_CANCELLED, "cancelled");
    }
    if (is(shim, "run-lost")) return fail(SW_ERROR_DEVICE_LOST, "the device went away");
    const sw_buffer *x = run->bounds[0]->buffer, *y = run->bounds[1]->buffer;
    if (!x || !y) return fail(SW_ERROR_INVALID_ARGUMENT, "no buffer");
    for (uint64_t i = 0; i < run->rows; i++) {
        ((float *)y->data)[i + run->bounds[1]->offset / 4] = 2 * ((const float *)x->data)[i + run->bounds[0]->offset / 4];
    }
    return 0;
}

static void cancel(sw_shard *shard) { atomic_store(&shard->cancelled, 1); }

static sw_error *buffer_allocate(sw_shim *shim, const char *device, uint64_t length, uint64_t alignment,
                                 sw_buffer **buffer) {
    (void)device;
    if (is(shim, "buffer-null")) return 0;
    if (is(shim, "buffer-full")) return fail(SW_ERROR_RESOURCE_LIMIT, "the address space of the device is full");
    sw_buffer *made = calloc(1, sizeof *made);
    made->length = length;
    made->data = aligned_alloc(alignment < 16 ? 16 : alignment, (length + 63) / 64 * 64);
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
    if (is(shim, "map-refused")) return fail(SW_ERROR_INVALID_ARGUMENT, "device memory");
    *pointer = is(shim, "map-null") ? 0 : buffer->data;
    return 0;
}

static sw_error *buffer_sync(sw_shim *shim, sw_buffer *buffer, uint64_t offset, uint64_t length, uint32_t direction) {
    (void)offset, (void)length;
    if (is(shim, "sync-fails")) return fail(SW_ERROR_DEVICE_LOST, "the device went away");
    buffer->synced[direction == SW_SYNC_AFTER_HOST]++;
    return 0;
}

static sw_error *recover(sw_shim *shim, const char *device) {
    (void)device;
    return is(shim, "recover-fails") ? fail(SW_ERROR_DEVICE_LOST, "still gone") : 0;
}

static sw_error *inspect(sw_shim *shim, const void *bytes, uint64_t length, const sw_inspection_sink *sink) {
    if (length < 6 || memcmp(bytes, "FAULTY", 6) != 0) return 0;
    if (is(shim, "inspect-fails")) return fail(SW_ERROR_CORRUPT_ARTEFACT, "cut short");
    sw_inspection item = {.size = sizeof item, .format = "faulty-file", .document = "{\"graphs\":[]}"};
    char *text = 0;
    if (is(shim, "inspect-format")) item.format = "Faulty File";
    if (is(shim, "inspect-null")) item.document = 0;
    if (is(shim, "inspect-text")) item.document = "{";
    if (is(shim, "inspect-list")) item.document = "[]";
    if (is(shim, "inspect-long")) {
        text = malloc(SW_DOCUMENT_LIMIT + 2);
        memset(text, ' ', SW_DOCUMENT_LIMIT + 1);
        text[SW_DOCUMENT_LIMIT + 1] = 0;
        item.document = text;
    }
    sink->item(sink->context, &item);
    if (is(shim, "inspect-twice")) sink->item(sink->context, &item);
    free(text);
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
    .buffer_sync = buffer_sync,
    .recover = recover,
    .inspect = inspect,
    .flag_verdicts = flag_verdicts,
};

void shardwright_shim_entry(const sw_host *host, sw_answer *answer) {
    (void)host;
    answer->version_min = SW_VERSION;
    answer->version_max = SW_VERSION;
    answer->version = SW_VERSION;
    answer->table = &TABLE;
}
