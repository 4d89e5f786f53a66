/* The entry point of the example shim: its description, and the table. Copy this directory and replace the engine. */
#include "shim.h"

#include <stdlib.h>
#include <string.h>

#include "program.h"

/* An instance has no state except that it is open; a vendor's keeps device and context handles. */
struct sw_shim {
    const sw_host *host;
};

static const char DEVICE[] = "cpu";

static sw_error *check_device(const char *device) {
    if (strcmp(device, DEVICE) == 0) return NULL;
    return fail_with(SW_ERROR_INVALID_ARGUMENT, "device", device, "unknown device `%.60s`", device);
}

static sw_error *describe(const sw_description_sink *sink) {
    const sw_description description = {
        .size = sizeof description,
        .name = SW_TEMPLATE_NAME,
        .vendor = "Shardwright",
        .version = "0.1.0",
    };
    sink->item(sink->context, &description);
    return NULL;
}

static sw_error *open_shim(const sw_host *host, const sw_option *const *options, uint64_t option_count, sw_shim **shim) {
    if (option_count > 0) {
        return fail_with(SW_ERROR_INVALID_ARGUMENT, "option", options[0]->key, "unknown option `%.60s`, available options: none",
                         options[0]->key);
    }
    sw_shim *opened = calloc(1, sizeof *opened);
    if (!opened) return fail(SW_ERROR_RESOURCE_LIMIT, "not enough memory for an instance");
    opened->host = host;
    if (host && host->log) host->log(host->log_context, SW_LOG_DEBUG, SW_TEMPLATE_NAME ": opened");
    *shim = opened;
    return NULL;
}

static void close_shim(sw_shim *shim) { free(shim); }

static sw_error *devices(sw_shim *shim, const char *soc, const sw_device_sink *sink) {
    (void)shim;
#ifdef SW_TEMPLATE_SOC
    if (soc && strcmp(soc, SW_TEMPLATE_SOC) != 0) return NULL;
#else
    if (soc) return NULL; /* nothing is compiled offline */
#endif
    const sw_device device = {
        .size = sizeof device,
        .name = DEVICE,
#ifdef SW_TEMPLATE_SOC
        .soc = SW_TEMPLATE_SOC,
#endif
        .detail = "one thread, plain loops",
        .kind = SW_DEVICE_PRESENT,
        .memory_kinds = SW_MEMORY_HOST,
    };
    sink->item(sink->context, &device);
    return NULL;
}

static sw_error *limits(sw_shim *shim, const char *device, const sw_limit_sink *sink) {
    (void)shim;
    sw_error *error = check_device(device);
    if (error) return error;
    const sw_limit limit = {
        .size = sizeof limit,
        .name = "ops",
        .value = NODE_LIMIT,
        .provenance = SW_PROVENANCE_DECLARED,
        .note = "size of this shim's tables",
    };
    sink->item(sink->context, &limit);
    return NULL;
}

static sw_error *check(sw_shim *shim, const char *device, const sw_entry *entry, const sw_verdict_sink *sink) {
    (void)shim;
    sw_error *error = check_device(device);
    if (error) return error;
    for (uint64_t i = 0; i < entry->node_count; i++) {
        char text[200];
        const char *reason = refusal(entry, entry->nodes[i], text, sizeof text);
        const sw_verdict verdict = {
            .size = sizeof verdict,
            .node = i,
            .verdict = reason ? SW_VERDICT_REFUSED : SW_VERDICT_TAKEN,
            .reason = reason,
        };
        sink->item(sink->context, &verdict);
    }
    return NULL;
}

static sw_error *compile(sw_shim *shim, const char *device, const sw_work_order *order, const sw_compile_output *output) {
    (void)shim;
    sw_error *error = check_device(device);
    return error ? error : program_compile(order, output);
}

static sw_error *compatibility(sw_shim *shim, const char *device, const void *head, uint64_t head_length,
                               const sw_compatibility_sink *sink) {
    (void)shim;
    sw_error *error = check_device(device);
    if (error) return error;
    sw_compatibility told = {.size = sizeof told, .answer = SW_COMPATIBILITY_OPTIMAL};
    if (head_length != 16 || memcmp(head, "SWTMPL", 6) != 0) {
        told.answer = SW_COMPATIBILITY_NOT_MINE;
        told.reason = "the head was not written by this shim";
    } else if (memcmp(head, "SWTMPL01", 8) != 0) {
        told.answer = SW_COMPATIBILITY_UNSUPPORTED;
        told.reason = "the artefact has another version of this shim's format";
    }
    sink->item(sink->context, &told);
    return NULL;
}

static sw_error *load(sw_shim *shim, const char *device, const sw_artefact *artefact, const sw_option *const *options,
                      uint64_t option_count, sw_shard **shard) {
    (void)shim;
    sw_error *error = check_device(device);
    if (error) return error;
    for (uint64_t i = 0; i < option_count; i++) {
        /* The host requests at most that many threads; using one is always allowed. */
        if (strcmp(options[i]->key, "threads") == 0) continue;
        return fail_with(SW_ERROR_INVALID_ARGUMENT, "option", options[i]->key, "unknown option `%.60s`, available options: threads",
                         options[i]->key);
    }
    return program_load(artefact, shard);
}

static sw_error *entries(sw_shard *shard, const sw_loaded_entry_sink *sink) {
    for (uint64_t i = 0; i < shard->entry_count; i++) {
        const entry *e = &shard->entries[i];
        const sw_loaded_entry told = {
            .size = sizeof told,
            .index = i,
            .name = e->name,
            .rows = e->rows,
            .context = e->context,
            .binding_count = e->port_count,
        };
        sink->item(sink->context, &told);
    }
    return NULL;
}

static sw_error *bindings(sw_shard *shard, uint64_t index, const sw_binding_sink *sink) {
    if (index >= shard->entry_count) return fail(SW_ERROR_INVALID_ARGUMENT, "no such entry");
    const entry *e = &shard->entries[index];
    for (uint64_t i = 0; i < e->port_count; i++) {
        const port *p = &e->ports[i];
        const tensor *t = &e->tensors[p->input != SW_NO_TENSOR ? p->input : p->output];
        const sw_binding told = {
            .size = sizeof told,
            .index = i,
            .name = p->name,
            .direction = p->direction,
            .role = p->role,
            .dtype = t->dtype,
            .update = p->direction == SW_BINDING_STATE ? SW_UPDATE_IN_GRAPH : SW_UPDATE_NONE,
            .shape = t->rank ? t->shape : NULL,
            .rank = t->rank,
            .bytes = t->elements * 4,
            .alignment = 4,
            .memory_kinds = SW_MEMORY_HOST,
            .scale = 1,
        };
        sink->item(sink->context, &told);
    }
    return NULL;
}

static void cancel(sw_shard *shard) { atomic_store(&shard->cancelled, 1); }

/* Flags, estimates, buffers and recovery are left null: shim.h documents what that means. */
static const sw_table TABLE = {
    .size = sizeof(sw_table),
    .version = SW_VERSION,
    .draft = SW_DRAFT,
    .error_free = free_error,
    .describe = describe,
    .open = open_shim,
    .close = close_shim,
    .devices = devices,
    .limits = limits,
    .check = check,
    .compile = compile,
    .compatibility = compatibility,
    .load = load,
    .unload = program_free,
    .entries = entries,
    .bindings = bindings,
    .run = program_run,
    .cancel = cancel,
};

void shardwright_shim_entry(const sw_host *host, sw_answer *answer) {
    answer->version_min = SW_VERSION_0_1;
    answer->version_max = SW_VERSION;
    if (host->version_min > SW_VERSION || host->version_max < SW_VERSION_0_1) {
        answer->refusal = "this shim only supports contract version 0.1";
        return;
    }
    answer->version = SW_VERSION;
    answer->table = &TABLE;
}
