/* `chat BUNDLE QUESTION`: opens a bundle and streams the reply to a question. */

#include <stdio.h>

#include "shardwright.h"

static int failed(void) {
    sw_error error = {.size = sizeof error};
    sw_last_error(&error);
    fprintf(stderr, "error: %s%s%s\n", error.place ? error.place : "", error.place ? ": " : "", error.message);
    if (error.help) fprintf(stderr, "help: %s\n", error.help);
    return 1;
}

int main(int count, char **arguments) {
    if (count != 3) return fprintf(stderr, "usage: chat BUNDLE QUESTION\n"), 2;
    sw_model *model;
    sw_session *session;
    sw_reply *reply;
    sw_event event = {.size = sizeof event};
    if (sw_model_open(arguments[1], NULL, &model)) return failed();
    if (sw_session_open(model, &session)) return failed();
    if (sw_session_chat(session, arguments[2], &reply)) return failed();
    do {
        if (sw_reply_next(reply, &event)) return failed();
        if (event.kind == SW_EVENT_TEXT) fputs(event.text, stdout), fflush(stdout);
    } while (event.kind != SW_EVENT_END);
    puts("");
    sw_reply_close(reply);
    sw_session_close(session);
    sw_model_close(model);
    return 0;
}
