/* Words for people: statuses and kernel names. */
#include "neutron.h"

const char *neutron_status_message(NeutronStatus status) {
    static const char *const messages[NEUTRON_STATUS_COUNT] = {
#define MESSAGE(name, message) [NEUTRON_STATUS_##name] = message,
        NEUTRON_FOR_EACH_STATUS(MESSAGE)
#undef MESSAGE
    };
    return (unsigned)status < NEUTRON_STATUS_COUNT ? messages[status] : "unknown status";
}

const char *neutron_kernel_name(uint32_t kind) {
    static const char *const names[NEUTRON_KERNEL_KINDS] = {
#define NAME(kind, function, parameters, form) [NEUTRON_KERNEL_##kind] = #kind,
        NEUTRON_FOR_EACH_KERNEL(NAME)
#undef NAME
    };
    return kind < NEUTRON_KERNEL_KINDS ? names[kind] : "?";
}

typedef struct {
    char *text;
    size_t used, bytes;
} Writer;

static void put(Writer *w, const char *text) {
    for (; *text && w->used + 1 < w->bytes; ++text) w->text[w->used++] = *text;
}

static void put_number(Writer *w, uint32_t number) {
    char digits[11];
    size_t i = sizeof digits - 1;
    digits[i] = 0;
    do {
        digits[--i] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    put(w, digits + i);
}

const char *neutron_describe(const NeutronModel *model, NeutronStatus status, char *text, size_t bytes) {
    if (text == NULL || bytes == 0) return "";
    Writer w = {text, 0, bytes};
    put(&w, neutron_status_message(status));
    if (model != NULL && status != NEUTRON_STATUS_OK &&
        (model->problem_call >= 0 || model->problem_kernel < NEUTRON_KERNEL_KINDS)) {
        put(&w, " (");
        if (model->problem_call >= 0) {
            put(&w, "call ");
            put_number(&w, (uint32_t)model->problem_call);
            put(&w, ", ");
        }
        put(&w, "kernel ");
        put(&w, neutron_kernel_name(model->problem_kernel));
        put(&w, ")");
    }
    text[w.used] = 0;
    return text;
}
