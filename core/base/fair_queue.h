#pragma once

// A fair queue: items of several flows, served in turn by what they cost. It reads no clock; costs
// are arguments, so that tests can produce every order.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/flow_id.h"
#include "core/base/recycling_set.h"
#include "core/base/remedy.h"

namespace psd {

// A queue of the items of several flows. Thread-compatible.
//
// Every flow has an account with the sum of its items' costs. The cost of an item is known only
// after it has run; Charge adds it then. `share_` is the sum of a flow that always had an equal
// share of all costs. Flows whose sum is at most the share are due: they are served in turn, one
// item each. A flow with a larger sum is in debt: it waits until the share has grown to its sum,
// unless no flow is due. A flow that is new or was idle starts at the share, so that idle time
// earns no credit. A flow that goes idle in debt keeps the debt while others are active.
//
// Guarantees: between the first Push of a new flow and the Pop of that item, at most one item of
// every other flow is taken. No flow waits for ever, even if new flows keep coming. At most
// `max_taken` items of one flow are taken and not charged at a time; a flow that has so many waits
// until one of them is charged, and others go before it.
template <typename Item>
class FairQueue {
 public:
  // The least cost of an item, in the unit of Charge (nanoseconds in a ThreadPool).
  static constexpr int64_t kLeastCost = 1'000;

  // `max_items` limits the waiting items of all flows together. Requires: max_taken >= 1.
  explicit FairQueue(size_t max_items, size_t max_taken = std::numeric_limits<size_t>::max())
      : max_items_(max_items), max_taken_(max_taken) {}

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  // Whether an item can be taken now: false also if every flow with items has max_taken taken.
  bool HasNext() const { return !due_.empty() || !indebted_.empty(); }

  // Adds an item. `item` is moved from only on success.
  // Errors: RESOURCE_EXHAUSTED if at least as many items of this flow wait as there are free
  // places. Hence one flow alone fills at most half of the queue, and others still find room.
  absl::Status Push(const FlowId& flow, Item&& item) {
    auto found = accounts_.find(flow);
    const size_t waiting = found == accounts_.end() ? 0 : found->second->items.size();
    if (waiting >= max_items_ - size_) return Full(waiting);
    if (found == accounts_.end()) found = accounts_.emplace(flow, NewAccount()).first;
    Account& account = *found->second;
    if (account.IsResting()) {
      ++active_;
      resting_.Erase({account.spent, flow});
    }
    account.items.push_back(std::move(item));
    ++size_;
    if (waiting == 0) Enqueue(flow, account);
    return absl::OkStatus();
  }

  struct Taken {
    FlowId flow;
    Item item;
  };
  // Takes the next item. The caller must call Charge once the item has run.
  // Requires: HasNext().
  Taken Pop() {
    const FlowId flow = TakeTurn();
    Account& account = *accounts_.find(flow)->second;
    Taken taken{flow, std::move(account.items.front())};
    account.items.pop_front();
    --size_;
    ++account.taken;
    account.spent = std::max(account.spent, share_) + kLeastCost;
    if (!account.items.empty()) Enqueue(flow, account);
    return taken;
  }

  // Adds the cost of one item to the account of `flow`.
  // Requires: an item of `flow` was taken and not charged yet.
  void Charge(const FlowId& flow, int64_t cost) {
    cost = std::max(cost, kLeastCost);
    const auto sharers = static_cast<int64_t>(active_);
    share_ += (cost + sharers - 1) / sharers;
    Account& account = *accounts_.find(flow)->second;
    const bool waits = !account.items.empty();
    if (waits) Dequeue(flow, account);
    account.spent += cost - kLeastCost;
    --account.taken;
    if (waits) Enqueue(flow, account);
    if (account.IsResting()) {
      --active_;
      resting_.Insert({account.spent, flow});
    }
    CatchUp();
  }

 private:
  // The number of accounts of ended flows that are kept for new flows: as many as are likely to
  // come and go at a time. Without them every task of a session that has nothing else to do would
  // allocate.
  static constexpr size_t kMaxSpare = 64;

  struct Account {
    std::deque<Item> items;
    size_t taken = 0;  // items that were taken and not charged yet
    int64_t spent = 0;
    uint64_t turn = 0;  // while it has items: its place in the order in which flows began to wait
    bool IsResting() const { return items.empty() && taken == 0; }
  };

  // Lets the flow wait for its turn. If max_taken of its items are taken, it waits for Charge
  // first.
  void Enqueue(const FlowId& flow, Account& account) {
    if (account.taken >= max_taken_) return;
    account.turn = next_turn_++;
    if (account.spent <= share_) {
      due_.Insert({account.turn, flow});
    } else {
      indebted_.Insert({account.spent, account.turn, flow});
    }
  }
  void Dequeue(const FlowId& flow, const Account& account) {
    if (!due_.Erase({account.turn, flow})) {
      indebted_.Erase({account.spent, account.turn, flow});
    }
  }
  FlowId TakeTurn() {
    return due_.empty() ? std::get<FlowId>(indebted_.PopFront()) : due_.PopFront().second;
  }
  // Moves flows whose debt is covered to the due ones, and forgets the accounts of idle flows that
  // are no longer in debt. To be called when the share has grown.
  void CatchUp() {
    while (!indebted_.empty() && std::get<int64_t>(indebted_.front()) <= share_) {
      const auto [spent, turn, flow] = indebted_.PopFront();
      due_.Insert({turn, flow});
    }
    while (!resting_.empty() && (active_ == 0 || resting_.front().first <= share_)) {
      EndAccount(resting_.PopFront().second);
    }
  }
  std::unique_ptr<Account> NewAccount() {
    if (spare_.empty()) return std::make_unique<Account>();
    std::unique_ptr<Account> account = std::move(spare_.back());
    spare_.pop_back();
    return account;
  }
  // Requires: the account has no items and its debt is covered.
  void EndAccount(const FlowId& flow) {
    auto ended = accounts_.find(flow);
    ended->second->spent = 0;
    if (spare_.size() < kMaxSpare) spare_.push_back(std::move(ended->second));
    accounts_.erase(ended);
  }
  absl::Status Full(size_t waiting) const {
    return WithRemedy(
        absl::ResourceExhaustedError(absl::StrCat(
            "the queue of this session is full: ", waiting,
            " of its tasks wait for a thread, and one session may have as many as there are free "
            "places of ",
            max_items_)),
        "retry when some have ended");
  }

  const size_t max_items_;
  const size_t max_taken_;
  size_t size_ = 0;
  size_t active_ = 0;  // flows with an item that is waiting or taken
  int64_t share_ = 0;
  uint64_t next_turn_ = 0;
  absl::flat_hash_map<FlowId, std::unique_ptr<Account>> accounts_;
  std::vector<std::unique_ptr<Account>> spare_;
  // The flows with items. `due_` has those that spent no more than the share, ordered by turn;
  // `indebted_` has the others, ordered by what they spent.
  RecyclingSet<std::pair<uint64_t, FlowId>> due_;
  RecyclingSet<std::tuple<int64_t, uint64_t, FlowId>> indebted_;
  // The flows without items that still have a debt, ordered by what they spent.
  RecyclingSet<std::pair<int64_t, FlowId>> resting_;
};

}  // namespace psd
