// What ExecuTorch and C++ want of the system: its platform functions, and an end for what a firmware does not have.
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <new>

#include <executorch/runtime/platform/platform.h>

#include "board.h"
#include "semihosting.h"

extern "C" {

void* __dso_handle = nullptr;

// Static objects live as long as the firmware.
int __aeabi_atexit(void*, void (*)(void*), void*) {
  return 0;
}

// There is no heap. Classes with virtual destructors and kernels' unused helpers name one all the same.
void* malloc(size_t) {
  semihosting_text("error a kernel wants memory from a heap, which this firmware does not have\n");
  semihosting_exit(false);
}

void free(void*) {}

void et_pal_init(void) {}

ET_NORETURN void et_pal_abort(void) {
  semihosting_text("error ExecuTorch gave up\n");
  semihosting_exit(false);
}

ET_NORETURN void abort(void) {
  et_pal_abort();
}

// Of flatbuffers; the C library's own would bring files and a heap with it.
void __assert_func(const char*, int, const char*, const char* what) {
  semihosting_text("error assertion failed: ");
  semihosting_text(what);
  semihosting_text("\n");
  semihosting_exit(false);
}

et_timestamp_t et_pal_current_ticks(void) {
  return board_ticks();
}

et_tick_ratio_t et_pal_ticks_to_ns_multiplier(void) {
  return {1, 1};
}

void et_pal_emit_log_message(et_timestamp_t, et_pal_log_level_t, const char*, const char*, size_t, const char* message,
                             size_t) {
  semihosting_text("log ");
  semihosting_text(message);
  semihosting_text("\n");
}

void* et_pal_allocate(size_t) {
  return nullptr;
}

void et_pal_free(void*) {}

// ExecuTorch's messages are formatted here: newlib's own function has 20 KB, and Debian's does not know %zu.
int vsnprintf(char* text, size_t bytes, const char* format, va_list arguments) {
  size_t at = 0;
  const auto put = [&](char c) {
    if (at + 1 < bytes) {
      text[at] = c;
    }
    ++at;
  };
  for (; *format != 0; ++format) {
    if (*format != '%') {
      put(*format);
      continue;
    }
    ++format;
    while (*format != 0 && std::strchr("-+ #0123456789.", *format) != nullptr) {
      ++format; // widths and precisions are for the eye
    }
    int longs = 0;
    for (; *format == 'l' || *format == 'z' || *format == 'h' || *format == 't' || *format == 'j'; ++format) {
      longs += *format == 'l' ? 1 : *format == 'j' ? 2 : 0;
    }
    const char kind = *format;
    if (kind == 0) {
      break;
    }
    if (kind == 's') {
      const char* from = va_arg(arguments, const char*);
      for (from = from != nullptr ? from : "(null)"; *from != 0; ++from) {
        put(*from);
      }
    } else if (kind == 'c') {
      put(static_cast<char>(va_arg(arguments, int)));
    } else if (kind == 'f' || kind == 'g' || kind == 'e') {
      const double value = va_arg(arguments, double);
      long long whole = static_cast<long long>(value);
      put(value < 0 ? '-' : '~'); // the whole part has to do
      char digits[20];
      size_t count = 0;
      for (whole = whole < 0 ? -whole : whole; count == 0 || whole != 0; whole /= 10) {
        digits[count++] = static_cast<char>('0' + whole % 10);
      }
      while (count != 0) {
        put(digits[--count]);
      }
    } else if (std::strchr("diuxXp", kind) != nullptr) {
      const bool is_signed = kind == 'd' || kind == 'i';
      unsigned long long value = longs > 1 ? va_arg(arguments, unsigned long long)
                                 : is_signed
                                     ? static_cast<unsigned long long>(static_cast<long long>(va_arg(arguments, long)))
                                     : va_arg(arguments, unsigned long);
      if (is_signed && static_cast<long long>(value) < 0) {
        put('-');
        value = 0 - value;
      }
      const unsigned base = is_signed || kind == 'u' ? 10 : 16;
      char digits[20];
      size_t count = 0;
      for (; count == 0 || value != 0; value /= base) {
        digits[count++] = "0123456789abcdef"[value % base];
      }
      while (count != 0) {
        put(digits[--count]);
      }
    } else {
      put(kind);
    }
  }
  if (bytes != 0) {
    text[at < bytes ? at : bytes - 1] = 0;
  }
  return static_cast<int>(at);
}

int snprintf(char* text, size_t bytes, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int length = vsnprintf(text, bytes, format, arguments);
  va_end(arguments);
  return length;
}

} // extern "C"

void* operator new(std::size_t bytes) {
  return malloc(bytes);
}
void operator delete(void*) noexcept {}
void operator delete(void*, std::size_t) noexcept {}
