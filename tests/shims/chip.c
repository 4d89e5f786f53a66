/* A chip that is none: the CPU shim under another name, which dies in a run as a file tells it to.
 *
 * CPU_SHIM is the path of the CPU shim's library and ORDERS that of the file, which is read when an instance is opened: a way to die and the number of
 * the run, counted from there, such as `abort 7`; or what it says of artefacts, such as `recompile 0`; or `slip 0`. Without the file it serves as well as
 * the CPU. The name of shim and chip is NAME. */
#include "shim.h"

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

static sw_error lost = {
    .size = sizeof lost,
    .error_class = SW_ERROR_DEVICE_LOST,
    .message = "the chip fell off its bus",
};

static void error_free(sw_error *error) {
    if (error != &lost && cpu->error_free) cpu->error_free(error);
}

static sw_error *describe(const sw_description_sink *sink) {
    const sw_description description = {.size = sizeof description, .name = NAME, .vendor = "test", .version = "1"};
    sink->item(sink->context, &description);
    return NULL;
}

static sw_error *open_shim(const sw_host *host, const sw_option *const *options, uint64_t count, sw_shim **shim) {
    FILE *orders = fopen(ORDERS, "r");
    doomed = 0;
    atomic_store(&runs, 0);
    if (orders) {
        if (fscanf(orders, "%15s %lu", how, &doomed) != 2) doomed = 0;
        fclose(orders);
    }
    return cpu->open(host, options, count, shim);
}

/* The CPU is the chip when it is asked for by that name, and nothing otherwise. */
static sw_error *devices(sw_shim *shim, const char *soc, const sw_device_sink *sink) {
    (void)shim;
    if (soc && strcmp(soc, NAME) != 0) return NULL;
    const sw_device device = {.size = sizeof device,
                              .name = "cpu",
                              .soc = NAME,
                              .detail = "the CPU under another name",
                              .kind = SW_DEVICE_PRESENT,
                              .memory_kinds = SW_MEMORY_HOST};
    sink->item(sink->context, &device);
    return NULL;
}

/* Gives an error, or nothing where what was done is not noticed; returns at all only then. */
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
    sw_compatibility told = {.size = sizeof told, .reason = "the chip's compiler has moved on"};
    if (strcmp(how, "recompile") == 0) told.answer = SW_COMPATIBILITY_RECOMPILE;
    if (strcmp(how, "unsupported") == 0) told.answer = SW_COMPATIBILITY_UNSUPPORTED;
    if (strcmp(how, "not-mine") == 0) told.answer = SW_COMPATIBILITY_NOT_MINE;
    if (!told.answer) return cpu->compatibility(shim, device, head, length, sink);
    sink->item(sink->context, &told);
    return NULL;
}

/* Lets the first node of each work order's first entry run on the CPU, without being asked, if it is told to slip. */
static sw_error *compile(sw_shim *shim, const char *device, const sw_work_order *order, const sw_compile_output *out) {
    sw_error *error = cpu->compile(shim, device, order, out);
    if (error || strcmp(how, "slip") != 0) return error;
    const sw_placement placement = {.size = sizeof placement, .place = "cpu", .reason = "the chip was not in the mood"};
    out->placement(out->context, &placement);
    return NULL;
}

static sw_error *run_shard(sw_shard *shard, const sw_run *run) {
    if (atomic_fetch_add(&runs, 1) + 1 == doomed) {
        sw_error *error = die(run);
        if (error) return error;
    }
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
    cpu = answer->table;
    mine = *cpu;
    mine.error_free = error_free;
    mine.describe = describe;
    mine.open = open_shim;
    mine.devices = devices;
    mine.compatibility = compatibility;
    mine.compile = compile;
    mine.estimate = NULL;
    mine.run = run_shard;
    answer->table = &mine;
}
