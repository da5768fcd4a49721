#include "core/base/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/cord.h"

namespace psd {
namespace {

constexpr char kDetailUrl[] = "psd.v1/error_detail";

absl::Status WithPayload(std::string bytes) {
  absl::Status status = absl::InternalError("x");
  status.SetPayload(kDetailUrl, absl::Cord(bytes));
  return status;
}

TEST(DetailTest, RoundTrips) {
  const ErrorDetail detail{"owner0", "layer1/weight", "drop it first", true};
  absl::Status status = WithDetail(absl::AbortedError("gone"), detail);
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(status.message(), "gone");
  ASSERT_TRUE(GetDetail(status).has_value());
  EXPECT_TRUE(*GetDetail(status) == detail);
}

TEST(DetailTest, EmptyFieldsRoundTrip) {
  absl::Status status = WithDetail(absl::AbortedError("gone"), ErrorDetail{});
  ASSERT_TRUE(GetDetail(status).has_value());
  EXPECT_TRUE(*GetDetail(status) == ErrorDetail{});
}

TEST(DetailTest, LaterDetailReplacesEarlier) {
  absl::Status status = WithDetail(absl::AbortedError("gone"), {"a", "b", "c", true});
  status = WithDetail(status, {"d", "e", "f", false});
  EXPECT_TRUE(*GetDetail(status) == (ErrorDetail{"d", "e", "f", false}));
}

TEST(DetailTest, OkStaysOk) {
  absl::Status status = WithDetail(absl::OkStatus(), {"a", "b", "c", true});
  EXPECT_TRUE(status.ok());
  EXPECT_FALSE(GetDetail(status).has_value());
}

TEST(DetailTest, SeparatorsInTextsCannotForgeFields) {
  absl::Status status =
      WithDetail(absl::AbortedError("gone"), {"a|fate=unknown", "b", "||worker=c", false});
  ASSERT_TRUE(GetDetail(status).has_value());
  EXPECT_TRUE(*GetDetail(status) == (ErrorDetail{"a/fate=unknown", "b", "//worker=c", false}));
}

TEST(DetailTest, IsReadableWhereAStatusIsPrinted) {
  const absl::Status status =
      WithDetail(absl::UnavailableError("gone"), {"owner0", "", "start it", true});
  EXPECT_EQ(status.ToString(),
            "UNAVAILABLE: gone [psd.v1/error_detail='worker=owner0|remedy=start it|fate=unknown']");
}

TEST(DetailTest, NoneWithoutPayload) {
  EXPECT_FALSE(GetDetail(absl::AbortedError("gone")).has_value());
}

TEST(DetailTest, DamagedBytesGiveNone) {
  for (const char* bytes : {"a", "worker", "a=b", "worker=a|b", "fate=1", "fate=unknown1"}) {
    EXPECT_FALSE(GetDetail(WithPayload(bytes)).has_value()) << bytes;
  }
  EXPECT_FALSE(GetDetail(WithPayload(std::string("fate=unknown\0", 13))).has_value());
  EXPECT_FALSE(GetDetail(WithPayload(std::string(1 << 20, '\xff'))).has_value());
  EXPECT_EQ(GetDetail(WithPayload(std::string(1 << 20, '|'))), ErrorDetail{});
}

TEST(DetailTest, ForeignBytesAreKeptAsTheyAre) {
  std::string hostile("\xff\0\n", 3);
  absl::Status status = WithDetail(absl::AbortedError("gone"), {hostile, "", "", false});
  ASSERT_TRUE(GetDetail(status).has_value());
  EXPECT_EQ(GetDetail(status)->worker, hostile);
}

TEST(AnnotateTest, PutsAPrefixAndKeepsCodeAndPayloads) {
  absl::Status status = WithDetail(absl::NotFoundError("no w"), {"a", "b", "c", true});
  status.SetPayload("other", absl::Cord("payload"));
  absl::Status annotated = Annotate(status, "pull");
  EXPECT_EQ(annotated.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(annotated.message(), "pull: no w");
  EXPECT_TRUE(*GetDetail(annotated) == *GetDetail(status));
  EXPECT_EQ(*annotated.GetPayload("other"), absl::Cord("payload"));
  EXPECT_TRUE(Annotate(absl::OkStatus(), "pull").ok());
}

absl::Status ReturnIfError(absl::Status status, bool* went_on) {
  PSD_RETURN_IF_ERROR(status);
  *went_on = true;
  return absl::OkStatus();
}

absl::Status ReturnIfErrorOf(absl::StatusOr<int> result) {
  PSD_RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

TEST(MacroTest, ReturnIfErrorReturnsOnlyErrors) {
  bool went_on = false;
  EXPECT_EQ(ReturnIfError(absl::AbortedError("x"), &went_on), absl::AbortedError("x"));
  EXPECT_FALSE(went_on);
  EXPECT_TRUE(ReturnIfError(absl::OkStatus(), &went_on).ok());
  EXPECT_TRUE(went_on);
}

TEST(MacroTest, ReturnIfErrorTakesStatusOr) {
  EXPECT_EQ(ReturnIfErrorOf(absl::AbortedError("x")), absl::AbortedError("x"));
  EXPECT_TRUE(ReturnIfErrorOf(1).ok());
}

absl::StatusOr<int> Sum(absl::StatusOr<int> a, absl::StatusOr<int> b, int* evaluated) {
  auto count = [&](absl::StatusOr<int>& value) -> absl::StatusOr<int>& {
    ++*evaluated;
    return value;
  };
  PSD_ASSIGN_OR_RETURN(int first, count(a));
  int second = 0;
  PSD_ASSIGN_OR_RETURN(second, count(b));
  return first + second;
}

absl::StatusOr<std::unique_ptr<int>> Boxed(absl::StatusOr<std::unique_ptr<int>> box) {
  PSD_ASSIGN_OR_RETURN(std::unique_ptr<int> value, std::move(box));
  ++*value;
  return value;
}

TEST(MacroTest, AssignOrReturnEvaluatesOnceAndStopsAtErrors) {
  int evaluated = 0;
  EXPECT_EQ(*Sum(1, 2, &evaluated), 3);
  EXPECT_EQ(evaluated, 2);
  EXPECT_EQ(Sum(1, absl::AbortedError("b"), &evaluated).status(), absl::AbortedError("b"));
  EXPECT_EQ(evaluated, 4);
  EXPECT_EQ(Sum(absl::AbortedError("a"), 2, &evaluated).status(), absl::AbortedError("a"));
  EXPECT_EQ(evaluated, 5);
}

TEST(MacroTest, AssignOrReturnMoves) {
  EXPECT_EQ(**Boxed(std::make_unique<int>(1)), 2);
}

TEST(CheckTest, PassesAndDies) {
  PSD_CHECK(1 + 1 == 2, "arithmetic");
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(PSD_CHECK(1 + 1 == 3, std::string("the reason")),
               "internal error: 1 \\+ 1 == 3 does not hold: the reason");
}

}  // namespace
}  // namespace psd
