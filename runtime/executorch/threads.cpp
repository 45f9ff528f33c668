#include "threads.h"

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <new>

#include "neutron_backend.h"
#include "neutron_interrupt.h"
#include "neutron_pool.h"

namespace openneutron {
namespace {

// Pools by their number of threads. They stay until the process ends: a run may be using one.
class Pools {
 public:
  bool use(uint32_t count) {
    if (count < 1 || count > kMost) {
      return false;
    }
    if (count == current_.load()) {
      return true;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (count > 1 && pools_[count].load() == nullptr) {
      pools_[count].store(neutron_pool_create(count));
    }
    const bool made = count == 1 || pools_[count].load() != nullptr;
    current_.store(made ? count : 1);
    return made;
  }

  // What a run is given: null for one thread.
  const NeutronThreads* threads() const {
    return neutron_pool_threads(pools_[current_.load()].load());
  }

  static Pools& get() {
    // Never destroyed: threads may outlive static objects. Not on the heap, which may be full.
    alignas(Pools) static unsigned char memory[sizeof(Pools)];
    static Pools* pools = new (memory) Pools;
    return *pools;
  }

 private:
  static constexpr uint32_t kMost = 64;

  Pools() {
    const char* count = std::getenv("OPENNEUTRON_THREADS");
    if (count != nullptr) {
      use(static_cast<uint32_t>(std::strtoul(count, nullptr, 10)));
    }
  }

  std::mutex mutex_;
  std::atomic<uint32_t> current_{1};
  std::atomic<NeutronPool*> pools_[kMost + 1]{};
};

std::atomic<uint64_t> most_work{0};
thread_local const volatile uint32_t* watched = nullptr;

} // namespace

const NeutronThreads* backend_threads() {
  return Pools::get().threads();
}

uint64_t backend_most_work() {
  return most_work.load();
}

const volatile uint32_t* backend_stop() {
  return watched;
}

} // namespace openneutron

extern "C" __attribute__((visibility("default"))) int neutron_backend_set_threads(uint32_t count) {
  return openneutron::Pools::get().use(count) ? 0 : 1;
}

extern "C" __attribute__((visibility("default"))) void neutron_backend_set_most_work(uint64_t most_work) {
  openneutron::most_work.store(most_work);
}

extern "C" __attribute__((visibility("default"))) void neutron_backend_watch_interrupts(void) {
  openneutron::watched = neutron_watch_interrupts();
}

extern "C" __attribute__((visibility("default"))) void neutron_backend_unwatch_interrupts(void) {
  openneutron::watched = nullptr;
  neutron_unwatch_interrupts();
}
