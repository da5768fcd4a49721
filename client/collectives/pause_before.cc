#include "client/collectives/pause_before.h"

#include "client/runtime_of.h"
#include "core/base/clock.h"
#include "core/base/future.h"
#include "core/base/timer.h"
#include "core/runtime/runtime.h"

namespace psd {
namespace {

constexpr absl::Duration kPause = absl::Milliseconds(20);

}  // namespace

bool PauseBefore(absl::Time until, Worker& worker) {
  if (Clock::Steady().Now() + kPause >= until) return false;
  Promise<Unit> paused;
  RuntimeOf(worker).timers().RunAfter(kPause, [paused] { paused.Set(Unit{}); });
  return paused.future().Wait().ok();
}

}  // namespace psd
