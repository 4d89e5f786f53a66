// `chat BUNDLE QUESTION`: opens a bundle and streams the reply to a question, with handles that close themselves.

#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>

#include "shardwright.h"

// Throws the last failure of this thread unless the status is SW_OK.
static void check(sw_status status) {
    if (status == SW_OK) return;
    sw_error error{};
    error.size = sizeof error;
    sw_last_error(&error);
    throw std::runtime_error(std::string(sw_status_name(status)) + ": " + error.message);
}

template <auto close>
struct Close {
    template <typename Handle>
    void operator()(Handle *handle) const { close(handle); }
};

int main(int count, char **arguments) try {
    if (count != 3) throw std::runtime_error("usage: chat BUNDLE QUESTION");
    sw_model *opened = nullptr;
    check(sw_model_open(arguments[1], nullptr, &opened));
    std::unique_ptr<sw_model, Close<sw_model_close>> model(opened);
    sw_session *started = nullptr;
    check(sw_session_open(model.get(), &started));
    std::unique_ptr<sw_session, Close<sw_session_close>> session(started);
    sw_reply *begun = nullptr;
    check(sw_session_chat(session.get(), arguments[2], &begun));
    std::unique_ptr<sw_reply, Close<sw_reply_close>> reply(begun);
    sw_event event{};
    event.size = sizeof event;
    for (check(sw_reply_next(reply.get(), &event)); event.kind != SW_EVENT_END; check(sw_reply_next(reply.get(), &event)))
        if (event.kind == SW_EVENT_TEXT) std::cout << event.text << std::flush;
    std::cout << '\n';
    return 0;
} catch (const std::exception &error) {
    std::cerr << "error: " << error.what() << '\n';
    return 1;
}
