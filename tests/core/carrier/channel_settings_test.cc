#include "core/carrier/grpc/channel_settings.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace psd::carrier {
namespace {

TEST(WindowForPieces, IsFixedForNearPeers) {
  EXPECT_EQ(WindowForPieces(absl::Microseconds(50)), Window::kFixed);
  EXPECT_EQ(WindowForPieces(absl::Microseconds(2999)), Window::kFixed);
}

// A fixed window would let a stream carry one piece per round trip.
TEST(WindowForPieces, IsMeasuredForDistantPeers) {
  EXPECT_EQ(WindowForPieces(absl::Milliseconds(3)), Window::kProbed);
  EXPECT_EQ(WindowForPieces(absl::Milliseconds(20)), Window::kProbed);
}

}  // namespace
}  // namespace psd::carrier
