// Three trainers change the options of an optimizer on three owners. The test runs the lead's rules
// of docs/decisions/0016-one-lead.md under random histories: messages overtake each other, and the
// lead is restarted. In the end all owners have the options that the lead has.
//
// The same world without one of the rules shows that the histories are hard enough.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/options/optimizer_registry.h"
#include "core/optim/options/option_groups.h"
#include "core/optim/owner/optimizer_life.h"
#include "core/tensor/dtype.h"
#include "gtest/gtest.h"

namespace psd::optim {
namespace {

constexpr size_t kOwners = 3, kTrainers = 3;
constexpr int kEvents = 200;

struct Rules {
  // Otherwise each trainer has its own, by its order of parameters.
  bool one_lead = true;
  bool decisions_have_lives = true;  // otherwise they have numbers only
};

class World {
 public:
  World(uint64_t seed, const Rules& rules) : random_(seed), rules_(rules) {
    for (size_t i = 0; i < kOwners; ++i) {
      Start(i);
      owners_[i].life.id = life_;
    }
  }

  // Returns a description of the fault, or an empty text.
  std::string Run() {
    for (int i = 0; i < kEvents; ++i) RandomEvent();
    while (!messages_.empty()) Deliver();
    for (size_t i = 1; i < kOwners; ++i) {
      if (Rate(i) == Rate(0)) continue;
      return absl::StrCat("owner", i, " steps with ", Rate(i), ", and the lead with ", Rate(0));
    }
    return "";
  }

 private:
  using Message = std::function<void()>;

  size_t Draw(size_t below) { return random_() % below; }
  void Send(Message message) { messages_.push_back(std::move(message)); }
  void Deliver() {
    std::swap(messages_[Draw(messages_.size())], messages_.back());
    Message message = std::move(messages_.back());
    messages_.pop_back();
    message();
  }

  void RandomEvent() {
    switch (Draw(20)) {
      case 0:
        return RestartLead();
      case 1:
      case 2:
      case 3:
        return SetRate(Draw(kTrainers));
      default:
        if (!messages_.empty()) Deliver();
    }
  }

  void Start(size_t owner) {
    OptionGroups& groups = owners_[owner].groups = OptionGroups();
    groups.Add(*registry_.Create({"sgd", {{"lr", 1}}}), {DType::kF32});
  }
  double Rate(size_t owner) const { return owners_[owner].groups.Get(0)->spec.options.at("lr"); }

  // The lead has lost its part. The part is brought back, so all parts have another life, and the
  // trainers create the optimizer again.
  void RestartLead() {
    Start(0);
    life_ = {1, life_.counter + 1};
    for (Owner& owner : owners_) {
      owner.life.id = life_;
      if (rules_.decisions_have_lives) owner.groups.BeginLife();
    }
    for (size_t i = 0; i < kTrainers; ++i) Follow(i);
  }

  size_t LeadOf(size_t trainer) const { return rules_.one_lead ? 0 : trainer % kOwners; }

  absl::StatusOr<GroupOptions> Change(size_t owner, double rate, uint64_t version, GlobalId life) {
    Owner& place = owners_[owner];
    if (rules_.decisions_have_lives) PSD_RETURN_IF_ERROR(CheckLife(life, place.life));
    return place.groups.Change(0, {{"lr", rate}}, version, registry_,
                               [](const FunctionalOptimizer&) { return absl::OkStatus(); });
  }

  // The lead decides, then the trainer tells the others.
  void SetRate(size_t trainer) {
    const double rate = ++rates_;
    const size_t lead = LeadOf(trainer);
    Send([this, lead, rate, life = life_] {
      const auto decided = Change(lead, rate, 0, life);
      if (decided.ok()) Send([this, lead, life, now = *decided] { Tell(lead, life, now); });
    });
  }
  // Does what a trainer does when it creates the optimizer.
  void Follow(size_t trainer) {
    const size_t lead = LeadOf(trainer);
    Send([this, lead, life = life_] {
      Send([this, lead, life, now = *owners_[lead].groups.Get(0)] { Tell(lead, life, now); });
    });
  }
  void Tell(size_t lead, GlobalId life, const GroupOptions& decided) {
    for (size_t i = 0; i < kOwners; ++i) {
      if (i == lead) continue;
      Send([this, i, life, decided] {
        Change(i, decided.spec.options.at("lr"), decided.version, life).status().IgnoreError();
      });
    }
  }

  struct Owner {
    OptionGroups groups;
    OptimizerLife life;
  };

  std::mt19937_64 random_;
  const Rules rules_;
  const OptimizerRegistry registry_ = OptimizerRegistry::Builtin();
  Owner owners_[kOwners];
  GlobalId life_{1, 1};  // as the trainers know it
  double rates_ = 1;
  std::vector<Message> messages_;
};

// Returns in how many histories the owners disagree.
int Failures(const Rules& rules) {
  int failures = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) failures += !World(seed, rules).Run().empty();
  return failures;
}

TEST(OptionsSim, AllOwnersHaveWhatTheLeadHas) {
  for (uint64_t seed = 1; seed <= 2000; ++seed)
    ASSERT_EQ(World(seed, Rules{}).Run(), "") << "seed " << seed;
}

TEST(OptionsSim, LeadsThatDependOnTheOrderOfParametersDisagree) {
  Rules rules;
  rules.one_lead = false;
  EXPECT_GT(Failures(rules), 0);
}

TEST(OptionsSim, WithoutLivesARestartedLeadIsNotFollowed) {
  Rules rules;
  rules.decisions_have_lives = false;
  EXPECT_GT(Failures(rules), 0);
}

}  // namespace
}  // namespace psd::optim
