#include "core/base/work_threads.h"

#include <algorithm>

namespace psd {
namespace {

constexpr int kUsersNiceness = 5;  // gives a third of the weight of a thread without it

ThreadPoolOptions ForUsers(ThreadPoolOptions options) {
  options.niceness = kUsersNiceness;
  options.max_of_one_flow =
      static_cast<size_t>(std::max(1, options.threads) + options.max_compensation / 2);
  return options;
}

}  // namespace

WorkThreads::WorkThreads(const ThreadPoolOptions& options)
    : own_(options), users_(ForUsers(options)) {}

void WorkThreads::Shutdown() {
  users_.Shutdown();
  own_.Shutdown();
}

ThreadPool::Stats WorkThreads::stats() const {
  const ThreadPool::Stats own = own_.stats(), users = users_.stats();
  return {own.threads + users.threads, own.idle + users.idle, own.blocked + users.blocked,
          own.queued + users.queued};
}

}  // namespace psd
