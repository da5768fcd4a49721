#include "core/rpc/access.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::rpc {
namespace {

using ::testing::HasSubstr;

class AccessTest : public ::testing::Test {
 protected:
  // Counts the questions to a policy that denies objects called `denied_`.
  AccessPolicy Policy() {
    return [this](const AccessQuestion& question) -> std::optional<size_t> {
      ++questions_;
      for (size_t i = 0; i < question.objects.size(); ++i)
        if (question.objects[i] == denied_) return i;
      return std::nullopt;
    };
  }
  absl::Status Ask(GlobalId group, Right right = Right::kRead) {
    return access_.Authorize(asker_, right, group, names_.size(),
                             [this](size_t i) { return names_[i]; });
  }

  const PeerInfo caller_{"trainer0", 7};
  const Asker asker_{kAnonymous, caller_, 3};
  const GlobalId group_{0, 1};
  std::vector<std::string> names_{"a", "b"};
  std::string denied_;
  int questions_ = 0;
  Access access_{{"owner0", 9}};
};

TEST_F(AccessTest, EverythingIsAllowedUntilThereIsAPolicy) {
  EXPECT_TRUE(access_
                  .Authorize(asker_, Right::kDrop, group_, 1,
                             [](size_t) -> std::string {
                               ADD_FAILURE() << "nobody needs the name";
                               return "";
                             })
                  .ok());
  EXPECT_TRUE(access_.Authorize(asker_, Right::kDrop, "w").ok());
  EXPECT_EQ(access_.remembered(), 0u);
}

TEST_F(AccessTest, ADenialNamesPrincipalRightAndObject) {
  denied_ = "b";
  access_.SetPolicy(Policy());
  const absl::Status denied = Ask(group_, Right::kStep);
  EXPECT_EQ(denied.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(denied.message(),
              HasSubstr("anonymous (called \"trainer0\") may not step 'b' on owner0"));
  ASSERT_TRUE(GetDetail(denied).has_value());
  EXPECT_EQ(GetDetail(denied)->object, "b");
  EXPECT_FALSE(GetDetail(denied)->remedy.empty());
  EXPECT_EQ(access_.remembered(), 0u) << "a denial is asked about again";
  EXPECT_FALSE(Ask(group_, Right::kStep).ok());
  EXPECT_EQ(questions_, 2);
  EXPECT_FALSE(access_.Authorize(asker_, Right::kRead, "b").ok());
}

TEST_F(AccessTest, APermissionIsRememberedForItsSessionRightAndGroup) {
  access_.SetPolicy(Policy());
  EXPECT_TRUE(Ask(group_).ok());
  EXPECT_TRUE(Ask(group_).ok());
  EXPECT_EQ(questions_, 1);
  EXPECT_TRUE(Ask({0, 2}).ok());
  EXPECT_TRUE(Ask(group_, Right::kWrite).ok());
  EXPECT_EQ(questions_, 3);
  const Asker next_session{kAnonymous, caller_, 4};
  EXPECT_TRUE(
      access_
          .Authorize(next_session, Right::kRead, group_, 0, {[](size_t) { return std::string(); }})
          .ok());
  EXPECT_EQ(questions_, 4);
  EXPECT_EQ(access_.remembered(), 4u);
  EXPECT_TRUE(Ask(GlobalId()).ok());
  EXPECT_TRUE(Ask(GlobalId()).ok());
  EXPECT_EQ(questions_, 6) << "objects without a group are asked about each time";
}

// Requests of several clients may come from one caller and one session, as reads do at the gateway.
TEST_F(AccessTest, APermissionIsItsPrincipalsOwn) {
  access_.SetPolicy([](const AccessQuestion& question) -> std::optional<size_t> {
    if (question.asker.principal == "alice") return std::nullopt;
    return 0;
  });
  const PeerInfo nobody;
  const auto ask = [&](absl::string_view principal) {
    return access_.Authorize({principal, nobody}, Right::kRead, group_, 1,
                             [](size_t) -> std::string { return "w"; });
  };
  EXPECT_TRUE(ask("alice").ok());
  EXPECT_EQ(access_.remembered(), 1u);
  EXPECT_EQ(ask("bob").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(ask("alice").ok());
  EXPECT_EQ(access_.remembered(), 1u);
}

TEST_F(AccessTest, PermissionsAreForgottenWithThePolicyAndWithAName) {
  access_.SetPolicy(Policy());
  EXPECT_TRUE(Ask(group_).ok());
  access_.NameDropped();
  EXPECT_EQ(access_.remembered(), 0u);
  EXPECT_TRUE(Ask(group_).ok());
  EXPECT_EQ(questions_, 2);
  denied_ = "a";
  access_.SetPolicy(Policy());
  EXPECT_FALSE(Ask(group_).ok());
  access_.SetPolicy(nullptr);
  EXPECT_TRUE(Ask(group_).ok());
  EXPECT_EQ(questions_, 3);
}

// The policy changes while a question is being answered.
TEST_F(AccessTest, APermissionOfAnEarlierPolicyIsNotRemembered) {
  access_.SetPolicy([this](const AccessQuestion&) -> std::optional<size_t> {
    access_.SetPolicy([](const AccessQuestion&) -> std::optional<size_t> { return 0; });
    return std::nullopt;
  });
  EXPECT_TRUE(Ask(group_).ok());
  EXPECT_EQ(access_.remembered(), 0u);
  EXPECT_FALSE(Ask(group_).ok());
}

TEST_F(AccessTest, AWorkerThatHostsNothingRefusesWhatWouldBeLeftThere) {
  access_.RefuseHosting();
  for (bool with_policy : {false, true}) {
    for (Right right : {Right::kCreate, Right::kCall, Right::kLoad}) {
      const absl::Status refused = access_.Authorize(asker_, right, "w");
      EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(refused.message(), HasSubstr("'w'"));
      ASSERT_TRUE(GetDetail(refused).has_value());
      EXPECT_EQ(GetDetail(refused)->worker, "owner0");
    }
    EXPECT_TRUE(access_.Authorize(asker_, Right::kJoin, "the job").ok());
    EXPECT_TRUE(access_.Authorize(asker_, Right::kInspect, "owner0").ok());
    access_.SetPolicy(with_policy ? nullptr : Policy());
  }
  EXPECT_EQ(access_.Authorize(asker_, Right::kCreate, "w").code(),
            absl::StatusCode::kFailedPrecondition)
      << "without a policy it refuses still";
}

TEST_F(AccessTest, AWorkerMayDoEverythingToItsOwnObjects) {
  denied_ = "a";
  access_.SetPolicy(Policy());
  const PeerInfo self{"owner0", 9}, namesake{"owner0", 8};
  EXPECT_TRUE(access_.Authorize({kAnonymous, self, 1}, Right::kDrop, "a").ok());
  EXPECT_FALSE(access_.Authorize({kAnonymous, namesake, 1}, Right::kDrop, "a").ok());
}

}  // namespace
}  // namespace psd::rpc
