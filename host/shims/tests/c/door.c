/* A shim that goes wrong at the door. Which way is chosen when it is compiled: -DWAY=… */
#include "shim.h"

#define TOO_NEW 1
#define TOO_OLD 2
#define SMALL_TABLE 3
#define REFUSES 4
#define SAYS_NOTHING 5
#define SAYS_BOTH 6
#define NOT_OFFERED 7
#define CONTRADICTS 8
#define LACKS_CHECK 9
#define LACKS_RUN 10
#define DESCRIBE_FAILS 11
#define DESCRIBES_TWICE 12
#define OTHER_NAME 13
#define OTHER_DRAFT 14
#define LACKS_LIBRARY 15

/* Of a vendor's library that is not linked. */
sw_error *vendor_start(void);

static sw_error failure = {.size = sizeof(sw_error), .error_class = SW_ERROR_INTERNAL, .message = "out of order"};

static sw_error *describe(const sw_description_sink *sink) {
    const sw_description description = {
        .size = sizeof description, .name = WAY == OTHER_NAME ? "someone" : "door", .vendor = "test", .version = "1"};
    if (WAY == LACKS_LIBRARY) return vendor_start();
    if (WAY == DESCRIBE_FAILS) return &failure;
    if (WAY == DESCRIBES_TWICE) sink->item(sink->context, &description);
    sink->item(sink->context, &description);
    return 0;
}

static sw_error *open_shim(const sw_host *host, const sw_option *const *options, uint64_t count, sw_shim **shim) {
    (void)host, (void)options, (void)count, (void)shim;
    return &failure;
}

static void close_shim(sw_shim *shim) { (void)shim; }

static sw_error *devices(sw_shim *shim, const char *soc, const sw_device_sink *sink) {
    (void)shim, (void)soc, (void)sink;
    return &failure;
}

static sw_error *check(sw_shim *shim, const char *device, const sw_entry *entry, const sw_verdict_sink *sink) {
    (void)shim, (void)device, (void)entry, (void)sink;
    return &failure;
}

static sw_error *compatibility(sw_shim *shim, const char *device, const void *head, uint64_t length,
                               const sw_compatibility_sink *sink) {
    (void)shim, (void)device, (void)head, (void)length, (void)sink;
    return &failure;
}

static sw_error *load(sw_shim *shim, const char *device, const sw_artefact *artefact, const sw_option *const *options,
                      uint64_t count, sw_shard **shard) {
    (void)shim, (void)device, (void)artefact, (void)options, (void)count, (void)shard;
    return &failure;
}

static const sw_table TABLE = {
    .size = WAY == SMALL_TABLE ? offsetof(sw_table, run) : sizeof(sw_table),
    .version = WAY == CONTRADICTS ? SW_VERSION + 1 : SW_VERSION,
    .draft = WAY == OTHER_DRAFT ? 0x0badc0deu : SW_DRAFT,
    .describe = describe,
    .open = open_shim,
    .close = close_shim,
    .devices = devices,
    .check = WAY == LACKS_CHECK ? 0 : check,
    .compatibility = compatibility,
    .load = WAY == LACKS_RUN ? load : 0,
};

void shardwright_shim_entry(const sw_host *host, sw_answer *answer) {
    (void)host;
    answer->version_min = answer->version_max = SW_VERSION;
    answer->version = SW_VERSION;
    answer->table = &TABLE;
    switch (WAY) {
        case TOO_NEW:
        case TOO_OLD:
            answer->version_min = WAY == TOO_NEW ? 0x00020000u : 0;
            answer->version_max = WAY == TOO_NEW ? 0x00020003u : 0;
            answer->version = 0;
            answer->table = 0;
            answer->refusal = WAY == TOO_NEW ? "this shim speaks 2.0 to 2.3" : "this shim speaks 0.0";
            break;
        case REFUSES:
            answer->table = 0;
            answer->refusal = "no licence on this machine";
            break;
        case SAYS_NOTHING: answer->table = 0; break;
        case SAYS_BOTH: answer->refusal = "and yet"; break;
        case NOT_OFFERED: answer->version = 0x00090000u; break;
        default: break;
    }
}
