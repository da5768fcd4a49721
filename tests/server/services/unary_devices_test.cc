// Parameters on devices, as clients of the unary service see them: created, pulled and stepped
// there, while gradients and values travel through the host.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "proto/psd/v1/service.grpc.pb.h"
#include "server/daemon/config.h"
#include "tests/server/services/unary_fixture.h"

namespace psd::server {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

class UnaryDevicesTest : public UnaryServiceTest {
 protected:
  UnaryDevicesTest()
      : UnaryServiceTest({}, {{DeviceConfig::Kind::kEmulated, 0, size_t{1} << 20}}) {}

  grpc::Status Create(const std::string& name, const std::string& device,
                      const std::vector<int64_t>& shape = {2, 2}) {
    v1::GetOrCreateParameterRequest request = Parameter(name, shape);
    request.set_device(device);
    return Mutate(&Stub::GetOrCreateParameter, request);
  }
  std::string DeviceOf(const std::string& name) {
    v1::WorkerStatus status;
    EXPECT_TRUE(Call(&Stub::Status, v1::StatusRequest(), &status).ok());
    for (const v1::NamedValue& value : status.values())
      if (value.name() == name) return value.device();
    return "nowhere";
  }
};

TEST_F(UnaryDevicesTest, AParameterThereIsPulledAndStepped) {
  ASSERT_TRUE(Create("w", "emu:0").ok());
  EXPECT_EQ(DeviceOf("w"), "emu:0");
  EXPECT_TRUE(Create("w", "").ok()) << "wherever it is";
  ASSERT_TRUE(Mutate(&Stub::GetOrCreateOptimizer, PlainSgd()).ok());
  const uint64_t context = NewContext();
  ASSERT_TRUE(Mutate(&Stub::PushGradient, Gradient(context, {1, 2, 3, 4})).ok());
  ASSERT_TRUE(Mutate(&Stub::PushGradient, Gradient(context, {1, 1, 1, 1})).ok());
  const grpc::Status stepped = Mutate(&Stub::Step, Step(context));
  ASSERT_TRUE(stepped.ok()) << stepped.error_message();
  EXPECT_EQ(PullW(), (std::vector<float>{-2, -3, -4, -5}));
  EXPECT_EQ(DeviceOf("w"), "emu:0");
}

TEST_F(UnaryDevicesTest, TheDeviceIsTheCpuUnlessItIsNamed) {
  EXPECT_TRUE(Create("a", "").ok());
  EXPECT_TRUE(Create("b", "cpu").ok());
  EXPECT_TRUE(Create("c", "auto").ok());
  EXPECT_EQ(DeviceOf("a"), "cpu");
  EXPECT_EQ(DeviceOf("b"), "cpu");
  EXPECT_EQ(DeviceOf("c"), "emu:0");
}

TEST_F(UnaryDevicesTest, DevicesThatCannotTakeItAreNamed) {
  const grpc::Status unknown = Create("w", "cuda:7");
  EXPECT_EQ(unknown.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(unknown.error_message(), HasSubstr("cuda:7"));
  EXPECT_THAT(unknown.error_message(), HasSubstr("emu:0"));
  const grpc::Status full = Create("w", "emu:0", {1 << 20});
  EXPECT_EQ(full.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(full.error_message(), HasSubstr("emu:0"));
  ASSERT_TRUE(Create("w", "cpu").ok());
  const grpc::Status elsewhere = Create("w", "emu:0");
  EXPECT_EQ(elsewhere.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(elsewhere.error_message(), HasSubstr("cpu"));
}

}  // namespace
}  // namespace psd::server
