// Objects behind references, and gradients of values behind references.

#include <memory>

#include "absl/time/time.h"
#include "client/calls.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/references_world.h"

namespace psd {
namespace {

using ::testing::ElementsAre;

using ObjectMethodsTest = ReferencesWorld;

TEST_F(ObjectMethodsTest, RREF_41_RREF_42_MethodsOfAnObjectInAllModes) {
  RRef log = Must(trainer_->Remote("owner0", Named("new_log"), {}));
  Must(trainer_->RpcSync("owner0", Named("append"), {log, 1}));
  ObjectProxy proxy(*trainer_, log);
  EXPECT_EQ(IntOf(Must(proxy.RpcSync("append", {2}))[0]), 2);
  EXPECT_EQ(IntOf(Must(proxy.RpcAsync("append", {3}).Wait())[0]), 3);
  RRef size = Must(proxy.Remote("append", {4}));
  EXPECT_EQ(Fetched(size), 4);
  EXPECT_THAT(IntsOf(Must(proxy.RpcSync("all", {}))[0]), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(proxy.RpcSync("appendix", {}).status().code(), absl::StatusCode::kNotFound);
  ObjectProxy no_log(*trainer_, Make("owner0", 7));
  EXPECT_EQ(no_log.RpcSync("append", {1}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(trainer_->RpcSync("owner0", Named("append"), {1}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ObjectMethodsTest, RREF_43_TheTimeoutCoversTheWaitForTheObject) {
  RRef slow = Must(trainer_->Remote("owner0", Named("park"), {}));
  CallOptions shortly;
  shortly.timeout = absl::Milliseconds(20);
  ObjectProxy proxy(*trainer_, slow);
  EXPECT_EQ(proxy.RpcSync("append", {1}, shortly).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  Must(trainer_->RpcSync("owner0", Named("nothing"), {}));  // comes after the cancel of the call
  parking_.Take().Set(Values{Value(std::shared_ptr<store::Object>(std::make_shared<NumberLog>()))});
  EXPECT_EQ(IntOf(Must(proxy.RpcSync("append", {1}))[0]), 1);
}

TEST_F(ObjectMethodsTest, RREF_44_AsynchronousMethods) {
  ObjectProxy proxy(*trainer_, Must(trainer_->Remote("owner0", Named("new_log"), {})));
  Future<Values> later = proxy.RpcAsync("append_later", {5});
  Promise<Values> go = parking_.Take();
  EXPECT_FALSE(later.IsReady());
  go.Set(Values{});
  EXPECT_EQ(IntOf(Must(later.Wait())[0]), 1);
}

TEST_F(ObjectMethodsTest, RREF_47_BackwardFromAReference) {
  RRef w = MakeParameter(*trainer_, "owner0", "w", Tensor::Of<float>({2}, {3, 4}));
  for (const char* callee : {"owner0", "trainer0"}) {
    Context context = Must(trainer_->NewContext());
    Values fetched = Must(trainer_->ToHere({w}, {absl::Seconds(60), &context}));
    CallOptions options;
    options.context = &context;
    RRef square = Must(
        trainer_->Remote(callee, Function::Operator("mul", 2), {fetched[0], fetched[0]}, options));
    RRef sum = Must(trainer_->Remote(callee, Function::Operator("sum", 1), {square}, options));
    ASSERT_TRUE(context.Backward(sum).ok()) << callee;
    EXPECT_THAT(Elements(Must(context.Gradient(w))), ElementsAre(6, 8));
    EXPECT_EQ(context.Backward(square).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(context.Backward(Make(callee, 7)).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(context.Backward(Make(callee, Tensor::Scalar(1.0f))).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace psd
