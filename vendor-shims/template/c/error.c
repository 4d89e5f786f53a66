/* Error objects: one allocation each, with a static one for when there is no memory. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "program.h"

typedef struct owned_error {
    sw_error error; /* first, so that a pointer to one is a pointer to the other */
    sw_detail detail;
    const sw_detail *details[1];
    char message[256], key[32], value[96];
} owned_error;

static sw_error no_memory = {
    .size = sizeof(sw_error),
    .error_class = SW_ERROR_RESOURCE_LIMIT,
    .message = "no memory",
};

static sw_error *make(uint32_t error_class, const char *key, const char *value, const char *format, va_list arguments) {
    owned_error *owned = calloc(1, sizeof *owned);
    if (!owned) return &no_memory;
    vsnprintf(owned->message, sizeof owned->message, format, arguments);
    owned->error.size = sizeof owned->error;
    owned->error.error_class = error_class;
    owned->error.message = owned->message;
    if (key) {
        snprintf(owned->key, sizeof owned->key, "%s", key);
        snprintf(owned->value, sizeof owned->value, "%s", value);
        owned->detail.size = sizeof owned->detail;
        owned->detail.key = owned->key;
        owned->detail.value = owned->value;
        owned->details[0] = &owned->detail;
        owned->error.details = owned->details;
        owned->error.detail_count = 1;
    }
    return &owned->error;
}

sw_error *fail(uint32_t error_class, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    sw_error *error = make(error_class, NULL, NULL, format, arguments);
    va_end(arguments);
    return error;
}

sw_error *fail_with(uint32_t error_class, const char *key, const char *value, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    sw_error *error = make(error_class, key, value, format, arguments);
    va_end(arguments);
    return error;
}

void free_error(sw_error *error) {
    if (error != &no_memory) free(error);
}
