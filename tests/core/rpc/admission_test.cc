#include "core/rpc/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "core/rpc/session_types.h"

namespace psd::rpc {
namespace {

using ::testing::HasSubstr;

class AdmissionTest : public ::testing::Test {
 protected:
  absl::Status Ask(Entrance by, MethodKind kind) const {
    return admission_.Admit(
        {by, kAnonymous, caller_, "grpc 10.0.0.5:41234", "value.fetch", kind, 100});
  }

  const PeerInfo caller_{"trainer0", 7};
  Admission admission_{"owner0"};
};

TEST_F(AdmissionTest, EveryRequestIsAdmittedBeforeTheWorkerDrains) {
  for (Entrance by : {Entrance::kStream, Entrance::kSelf, Entrance::kUnary}) {
    EXPECT_TRUE(Ask(by, MethodKind::kRead).ok());
    EXPECT_TRUE(Ask(by, MethodKind::kMutation).ok());
  }
}

TEST_F(AdmissionTest, AWorkerThatDrainsServesItselfAndClientsThatOnlyRead) {
  admission_.BeginDraining();
  admission_.BeginDraining();
  EXPECT_TRUE(Ask(Entrance::kSelf, MethodKind::kRead).ok());
  EXPECT_TRUE(Ask(Entrance::kSelf, MethodKind::kMutation).ok());
  EXPECT_TRUE(Ask(Entrance::kUnary, MethodKind::kRead).ok());
  for (const absl::Status& refused :
       {Ask(Entrance::kUnary, MethodKind::kMutation), Ask(Entrance::kStream, MethodKind::kRead),
        Ask(Entrance::kStream, MethodKind::kMutation)}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("owner0 is draining"));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("value.fetch was not applied"));
  }
}

}  // namespace
}  // namespace psd::rpc
