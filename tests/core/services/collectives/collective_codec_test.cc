#include "core/services/collectives/collective_codec.h"

#include <string>

#include "absl/status/status.h"
#include "core/base/status.h"
#include "core/services/collectives/collective_call.h"
#include "gtest/gtest.h"
#include "proto/psd/v1/collective.pb.h"

namespace psd::services {
namespace {

CollectiveCall LabelledReduceScatter() {
  CollectiveCall call;
  call.operation = Operation::kReduceScatter;
  call.reduction = Reduction::kMax;
  call.form = TensorForm{DType::kBF16, {4, 0, 3}};
  call.label = "bucket 1";
  return call;
}

TEST(CollectiveCodecTest, CallsComeBackAsTheyWere) {
  CollectiveCall given;
  given.operation = Operation::kBroadcast;
  given.root = 7;
  CollectiveCall scalar;
  scalar.operation = Operation::kAllGather;
  scalar.form = TensorForm{DType::kBool, {}};
  CollectiveCall shared = scalar;
  shared.shares_memory = true;
  EXPECT_FALSE(Agree(shared, scalar));
  for (const CollectiveCall& call :
       {LabelledReduceScatter(), given, scalar, shared, CollectiveCall()}) {
    v1::CollectiveCall message;
    EncodeCall(call, message);
    const auto decoded = DecodeCall(message);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_TRUE(Agree(*decoded, call));
    EXPECT_EQ(decoded->form, call.form);
    EXPECT_EQ(decoded->ToString(), call.ToString());
  }
}

TEST(CollectiveCodecTest, TheBytesOfACallNeverChange) {
  v1::CollectiveCall message;
  EncodeCall(LabelledReduceScatter(), message);
  EXPECT_EQ(message.SerializeAsString(), std::string("\x08\x03\x10\x04\x18\x08\x22\x03\x04\x00\x03"
                                                     "\x32\x08"
                                                     "bucket 1",
                                                     21));
}

TEST(CollectiveCodecTest, ForeignNumbersAreRefused) {
  const auto refused = [](auto change) {
    v1::CollectiveCall message;
    EncodeCall(LabelledReduceScatter(), message);
    change(message);
    const auto decoded = DecodeCall(message);
    return decoded.ok() ? CheckCall(*decoded, 2) : decoded.status();
  };
  EXPECT_TRUE(refused([](v1::CollectiveCall&) {}).ok());
  using Message = v1::CollectiveCall;
  EXPECT_FALSE(refused([](Message& m) { m.set_operation(0); }).ok());
  EXPECT_FALSE(refused([](Message& m) { m.set_operation(8); }).ok());
  EXPECT_FALSE(refused([](Message& m) { m.set_operation(256 + 3); }).ok());
  EXPECT_FALSE(refused([](Message& m) { m.set_reduction(5); }).ok());
  EXPECT_FALSE(refused([](Message& m) { m.set_reduction(256 + 1); }).ok());
  EXPECT_FALSE(refused([](Message& m) { m.set_dtype(9); }).ok());
  EXPECT_FALSE(refused([](Message& m) { m.set_extents(0, -1); }).ok());
  EXPECT_FALSE(refused([](Message& m) { m.set_root(1u << 31); }).ok());
  EXPECT_FALSE(refused([](Message& m) { m.set_root(1); }).ok());
}

TEST(CollectiveCodecTest, FormsComeBackAsTheyWere) {
  v1::CollectiveTaken message;
  EXPECT_FALSE(DecodeForm(message).ok()) << "a tensor has a dtype";
  EncodeForm({DType::kI64, {2, 3}}, message);
  const auto form = DecodeForm(message);
  ASSERT_TRUE(form.ok());
  EXPECT_EQ(*form, (TensorForm{DType::kI64, {2, 3}}));
}

TEST(CollectiveCodecTest, FailuresKeepCodeTextAndDetail) {
  const absl::Status failure =
      WithDetail(absl::DeadlineExceededError("late"), {"t1", "group ranks", "wait", false});
  v1::CollectiveEnd message;
  EncodeFailure(failure, message);
  EXPECT_EQ(DecodeFailure(message), failure);
  message.set_code(0);
  EXPECT_FALSE(DecodeFailure(message).ok()) << "a failure is never OK";
}

}  // namespace
}  // namespace psd::services
