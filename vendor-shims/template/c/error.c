/* Error objects: one allocation each, and a static one in case allocation fails. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "program.h"

#define MOST_DETAILS 3

typedef struct owned_error {
    sw_error error; /* first, so that a pointer to one is a pointer to the other */
    sw_detail detail[MOST_DETAILS];
    const sw_detail *details[MOST_DETAILS];
    char message[256], keys[MOST_DETAILS][32], values[MOST_DETAILS][96];
} owned_error;

static sw_error no_memory = {
    .size = sizeof(sw_error),
    .error_class = SW_ERROR_RESOURCE_LIMIT,
    .message = "not enough memory",
};

static sw_error *make(uint32_t error_class, const char *format, va_list arguments) {
    owned_error *owned = calloc(1, sizeof *owned);
    if (!owned) return &no_memory;
    vsnprintf(owned->message, sizeof owned->message, format, arguments);
    owned->error.size = sizeof owned->error;
    owned->error.error_class = error_class;
    owned->error.message = owned->message;
    return &owned->error;
}

static void add_detail(sw_error *error, const char *key, const char *value) {
    if (error == &no_memory) return;
    owned_error *owned = (owned_error *)error;
    const uint64_t place = error->detail_count;
    if (place == MOST_DETAILS) return;
    snprintf(owned->keys[place], sizeof owned->keys[place], "%s", key);
    snprintf(owned->values[place], sizeof owned->values[place], "%s", value);
    owned->detail[place].size = sizeof owned->detail[place];
    owned->detail[place].key = owned->keys[place];
    owned->detail[place].value = owned->values[place];
    owned->details[place] = &owned->detail[place];
    error->details = owned->details;
    error->detail_count = place + 1;
}

sw_error *fail(uint32_t error_class, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    sw_error *error = make(error_class, format, arguments);
    va_end(arguments);
    return error;
}

sw_error *fail_with(uint32_t error_class, const char *key, const char *value, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    sw_error *error = make(error_class, format, arguments);
    va_end(arguments);
    add_detail(error, key, value);
    return error;
}

sw_error *fail_over_limit(const char *limit, uint64_t value, uint64_t max, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    sw_error *error = make(SW_ERROR_RESOURCE_LIMIT, format, arguments);
    va_end(arguments);
    char text[24];
    add_detail(error, "limit", limit);
    snprintf(text, sizeof text, "%" PRIu64, value);
    add_detail(error, "value", text);
    snprintf(text, sizeof text, "%" PRIu64, max);
    add_detail(error, "max", text);
    return error;
}

void free_error(sw_error *error) {
    if (error != &no_memory) free(error);
}
