#include "core/services/collectives/group_ledger.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/quoted.h"
#include "core/base/remedy.h"
#include "core/base/status.h"

namespace psd::services {
namespace {

constexpr char kBuildAgain[] = "build the group again without it to go on";

// How long after its deadline a call fails if this rank cannot tell which of several ranks keeps
// the others waiting. A rank that can tell fails the group before. If all it knows is that the late
// ranks may be waiting for older calls, it leaves twice that time to those that have such a call.
constexpr absl::Duration kVerdict = absl::Seconds(1);

// Whether pieces of that phase have not come from a rank.
template <typename Peer>
bool Misses(const Peer& peer, int phase) {
  const std::vector<bool>& arrived = peer.arrived[phase];
  return std::find(arrived.begin(), arrived.end(), false) != arrived.end();
}

// Whether only reduced pieces are missing. A rank that has not sent them may wait for data of a
// third one.
template <typename Peers>
bool IsUnclear(const Peers& peers, int rank) {
  bool waiting = false;
  for (int other = 0; other < static_cast<int>(peers.size()); ++other) {
    if (other == rank) continue;
    if (!peers[other].heard || Misses(peers[other], 0)) return false;
    waiting = waiting || Misses(peers[other], 1);
  }
  return waiting && peers.size() > 2;
}

bool SaysDeath(const absl::Status& why) {
  return absl::IsUnavailable(why) || absl::IsAborted(why) || absl::IsCancelled(why) ||
         absl::IsDeadlineExceeded(why);
}

absl::Status Dishonest(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("a message of a group that no rank of this version sends: ", what));
}

}  // namespace

GroupLedger::GroupLedger(std::string name, std::vector<std::string> members, int rank,
                         const PlanLimits& limits)
    : name_(std::move(name)),
      members_(std::move(members)),
      rank_(rank),
      limits_(limits),
      left_(members_.size()),
      completed_(members_.size()),
      sums_(members_.size()) {
  PSD_CHECK(members_.size() >= 2, "a group of one rank needs no ledger");
}

std::string GroupLedger::RankName(int rank) const {
  return absl::StrCat("rank ", rank, " (", members_[rank], ")");
}

absl::Status GroupLedger::OfGroup(absl::StatusCode code, const std::string& text,
                                  int culprit) const {
  ErrorDetail detail;
  if (culprit >= 0) detail.worker = members_[culprit];
  detail.object = absl::StrCat("group ", name_);
  if (code == absl::StatusCode::kInvalidArgument) code = absl::StatusCode::kFailedPrecondition;
  return WithDetail(absl::Status(code, absl::StrCat("group ", Quoted(name_), ": ", text)), detail);
}

std::string GroupLedger::CallName(uint64_t number, const Call& call) const {
  return absl::StrCat("call ", number, ", ", call.call->ToString());
}

GroupLedger::Call& GroupLedger::CallOf(uint64_t number) {
  Call& call = calls_[number];
  call.peers.resize(members_.size());
  return call;
}

bool GroupLedger::Compare(Call& known, uint64_t number, int by, const CollectiveCall& call,
                          GroupEffects& effects) {
  if (!known.call.has_value()) {
    known.call = call;
    known.caller = by;
    return true;
  }
  if (!Agree(*known.call, call)) {
    Fail(WithRemedy(OfGroup(absl::StatusCode::kFailedPrecondition,
                            absl::StrCat("the ranks differ in call ", number, ": ",
                                         RankName(known.caller), " calls ", known.call->ToString(),
                                         ", ", RankName(by), " calls ", call.ToString()),
                            -1),
                    "make the same calls, with the same shapes and dtypes, in the same order on "
                    "all ranks"),
         effects);
    return false;
  }
  if (!known.call->form.has_value() && call.form.has_value()) {
    known.call = call;
    known.caller = by;
  }
  return true;
}

absl::StatusOr<uint64_t> GroupLedger::Enter(const CollectiveCall& call, absl::Time now,
                                            absl::Duration timeout, GroupEffects& effects) {
  PSD_RETURN_IF_ERROR(failure_);
  PSD_RETURN_IF_ERROR(CheckCall(call, size()));
  if (HasRoot(call.operation) && call.root == rank_ && !call.form.has_value())
    return absl::InvalidArgumentError(absl::StrCat(call.ToString(), ": the root has no tensor"));
  if (next_ - floor_ >= kMaxEntered) {
    return WithRemedy(OfGroup(absl::StatusCode::kResourceExhausted,
                              absl::StrCat(kMaxEntered, " calls are not complete"), -1),
                      "wait for some of them");
  }
  const uint64_t number = next_++;
  Call& entered = CallOf(number);
  entered.entered = true;
  entered.timeout = timeout;
  entered.deadline = now + timeout;
  if (Compare(entered, number, rank_, call, effects)) BeginWaiting(effects);
  return number;
}

void GroupLedger::BeginWaiting(GroupEffects& effects) {
  while (failure_.ok() && next_begin_ < next_ && next_begin_ < floor_ + kMaxUnderWay) {
    const uint64_t number = next_begin_++;
    auto call = calls_.find(number);
    Begin(number, call->second, effects);
    if (failure_.ok()) Progress(call, effects);
  }
}

void GroupLedger::Begin(uint64_t number, Call& call, GroupEffects& effects) {
  call.begun = true;
  MakePlan(call);
  for (int rank = 0; rank < size(); ++rank) {
    // A rank sends pieces only to ranks that have begun the call.
    if (!left_[rank] || (call.peers[rank].heard && call.peers[rank].pieces_left == 0)) continue;
    return Fail(WithRemedy(OfGroup(absl::StatusCode::kFailedPrecondition,
                                   absl::StrCat(RankName(rank), " has left before ",
                                                CallName(number, call)),
                                   rank),
                           kBuildAgain),
                effects);
  }
  effects.push_back({GroupEffect::kTell, number, 0, static_cast<size_t>(floor_)});
  OpenReady(number, call, effects);
}

void GroupLedger::MakePlan(Call& call) {
  const bool known = call.call->form.has_value() || call.call->operation == Operation::kBarrier;
  if (!call.begun || call.plan.has_value() || !known) return;
  call.plan.emplace(*call.call, size(), limits_);
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == rank_) continue;
    Peer& peer = call.peers[rank];
    for (int phase : {0, 1}) {
      if (phase == 0 && call.plan->tells_bytes()) continue;
      const size_t pieces = call.plan->Pieces(phase, rank, rank_);
      peer.arrived[phase].resize(pieces);
      peer.pieces_left += pieces;
      if (phase == 1 || !call.plan->reduces_pieces()) call.pieces_left += pieces;
    }
  }
  if (!call.plan->reduces_pieces()) return;
  // Every rank sends this one equally many pieces of its part.
  call.reductions_left = call.plan->Pieces(0, rank_ == 0 ? 1 : 0, rank_);
  call.arrivals.resize(call.reductions_left);
}

absl::StatusOr<bool> GroupLedger::Heard(int from, uint64_t number, uint64_t completed,
                                        const CollectiveCall& call, GroupEffects& effects) {
  if (!failure_.ok()) return false;
  PSD_RETURN_IF_ERROR(CheckCall(call, size()));
  if (HasRoot(call.operation) && call.root == from && !call.form.has_value())
    return Dishonest("a root without a tensor");
  // A rank completes no call that this one has not entered, so it cannot be further ahead.
  if (number < floor_ || number >= next_begin_ + kMaxUnderWay)
    return Dishonest(absl::StrCat("call ", number, " while this rank is at call ", next_));
  // A call that has begun and is not known any more is over, although an earlier one is not.
  if (number < next_begin_ && calls_.find(number) == calls_.end())
    return Dishonest(absl::StrCat("call ", number, ", which is over"));
  if (completed > number)
    return Dishonest(absl::StrCat("call ", number, ", made by a rank that has completed it"));
  completed_[from] = std::max(completed_[from], completed);
  if (call.form.has_value() && CallPlan(call, size(), limits_).has_second_phase())
    sums_[from] = std::max(sums_[from], number + 1);
  Call& known = CallOf(number);
  if (std::exchange(known.peers[from].heard, true)) return Dishonest("one call, entered twice");
  ++known.heard;
  known.peers[from].has_form = call.form.has_value();
  if (!Compare(known, number, from, call, effects)) return false;
  MakePlan(known);
  OpenReady(number, known, effects);
  Progress(calls_.find(number), effects);
  return true;
}

void GroupLedger::Told(int rank, uint64_t number, GroupEffects& effects) {
  auto call = calls_.find(number);
  if (!failure_.ok() || call == calls_.end()) return;
  call->second.peers[rank].told = true;
  OpenIfReady(number, call->second, rank, effects);
  EraseIfOver(call);
}

// Pieces are sent only to a rank that has made the call and knows its form, so no piece comes to a
// rank that is not ready for it. A rank that takes whatever the root gives knows the form as soon
// as it knows that the root has made the call. Pieces may overtake the message that says so.
void GroupLedger::OpenReady(uint64_t number, Call& call, GroupEffects& effects) {
  for (int rank = 0; rank < size(); ++rank) OpenIfReady(number, call, rank, effects);
}

void GroupLedger::OpenIfReady(uint64_t number, Call& call, int rank, GroupEffects& effects) {
  Peer& peer = call.peers[rank];
  if (!peer.heard || !(peer.has_form || peer.told) || peer.open) return;
  if (!call.plan.has_value() || !call.plan->sends_pieces()) return;
  peer.open = true;
  ++call.open;
  effects.push_back({GroupEffect::kOpen, number, rank});
}

absl::Status GroupLedger::Arrived(int from, uint64_t number, int phase, size_t index,
                                  GroupEffects& effects) {
  if (!failure_.ok()) return absl::OkStatus();
  auto found = calls_.find(number);
  if (found == calls_.end() || !found->second.plan.has_value() || phase < 0 || phase > 1)
    return Dishonest(absl::StrCat("a piece of call ", number, " out of turn"));
  Call& call = found->second;
  Peer& peer = call.peers[from];
  if (index >= peer.arrived[phase].size() || peer.arrived[phase][index])
    return Dishonest(absl::StrCat("piece ", index, " of call ", number));
  peer.arrived[phase][index] = true;
  --peer.pieces_left;
  if (phase == 1) return absl::OkStatus();  // Stored follows
  if (call.plan->reduces_pieces()) {
    if (++call.arrivals[index] == size() - 1)
      effects.push_back({GroupEffect::kReduce, number, 0, index});
    return absl::OkStatus();
  }
  --call.pieces_left;
  Progress(found, effects);
  return absl::OkStatus();
}

void GroupLedger::Stored(uint64_t number, GroupEffects& effects) {
  auto call = calls_.find(number);
  if (!failure_.ok() || call == calls_.end()) return;
  --call->second.pieces_left;
  Progress(call, effects);
}

void GroupLedger::Reduced(uint64_t number, size_t index, GroupEffects& effects) {
  auto call = calls_.find(number);
  if (!failure_.ok() || call == calls_.end()) return;
  --call->second.reductions_left;
  if (call->second.plan->has_second_phase())
    effects.push_back({GroupEffect::kSendReduced, number, 0, index});
  Progress(call, effects);
}

void GroupLedger::Progress(Calls::iterator found, GroupEffects& effects) {
  Call& call = found->second;
  if (!call.begun || call.complete || call.heard < size() - 1 || !call.plan.has_value()) return;
  // When the last notice has come, so has all the data that the notices carry.
  if (call.plan->tells_bytes() && call.reductions_left > 0 && !std::exchange(call.reducing, true))
    effects.push_back({GroupEffect::kReduce, found->first, 0, 0});
  if (call.pieces_left > 0 || call.reductions_left > 0) return;
  call.complete = true;
  effects.push_back({GroupEffect::kComplete, found->first});
  EraseIfOver(found);
  // A call that is over before an earlier one stays behind the floor until that one is over, too.
  for (;; ++floor_) {
    auto lowest = calls_.find(floor_);
    if (floor_ >= next_begin_ || (lowest != calls_.end() && !lowest->second.complete)) break;
  }
  BeginWaiting(effects);
}

// A call stays until all ranks are open for the pieces that this rank sends them.
void GroupLedger::EraseIfOver(Calls::iterator call) {
  const Call& over = call->second;
  if (over.complete && (!over.plan->sends_pieces() || over.open == size() - 1)) calls_.erase(call);
}

bool GroupLedger::Needs(const Call& call, int rank) const {
  return call.entered && !call.complete &&
         (!call.peers[rank].heard || call.peers[rank].pieces_left > 0);
}

void GroupLedger::Lost(int rank, const absl::Status& why, GroupEffects& effects) {
  if (left_[rank]) return;
  const auto detail = GetDetail(why);
  if (detail.has_value() && detail->worker == members_[rank_]) return GiveUp(why, effects);
  if (!SaysDeath(why)) {
    return Fail(WithRemedy(OfGroup(why.code(),
                                   absl::StrCat(RankName(rank), " refused a message of ",
                                                RankName(rank_), ": ", why.message()),
                                   rank),
                           "mend the cause, then build the group again with all ranks"),
                effects);
  }
  Fail(WithRemedy(OfGroup(absl::IsAborted(why) ? why.code() : absl::StatusCode::kUnavailable,
                          absl::StrCat(RankName(rank), " is lost to ", RankName(rank_), ": ",
                                       why.message()),
                          rank),
                  kBuildAgain),
       effects);
}

void GroupLedger::Broken(int rank, const absl::Status& why, GroupEffects& effects) {
  Fail(WithRemedy(OfGroup(why.code(),
                          absl::StrCat(RankName(rank), " sent ", RankName(rank_),
                                       " what no rank of this version sends: ", why.message()),
                          rank),
                  "run the same version of psd on all ranks, then build the group again"),
       effects);
}

void GroupLedger::GiveUp(const absl::Status& why, GroupEffects& effects) {
  Fail(WithRemedy(OfGroup(why.code(),
                          absl::StrCat(RankName(rank_), " cannot go on: ", why.message()), rank_),
                  "mend the cause, then build the group again"),
       effects);
}

void GroupLedger::Left(int rank, GroupEffects& effects) {
  if (!failure_.ok()) return;
  if (rank == rank_) {
    return Fail(WithRemedy(OfGroup(absl::StatusCode::kFailedPrecondition,
                                   absl::StrCat(RankName(rank), ", this rank, has left"), rank),
                           "join again"),
                effects);
  }
  left_[rank] = true;
  for (const auto& [number, call] : calls_) {
    if (!Needs(call, rank)) continue;
    return Fail(WithRemedy(OfGroup(absl::StatusCode::kFailedPrecondition,
                                   absl::StrCat(RankName(rank), " has left before ",
                                                CallName(number, call)),
                                   rank),
                           kBuildAgain),
                effects);
  }
}

void GroupLedger::Fail(absl::Status failure, GroupEffects& effects) {
  if (!failure_.ok()) return;
  failure_ = std::move(failure);
  calls_.clear();
  effects.push_back({GroupEffect::kFail});
}

bool GroupLedger::IsHeldBack(uint64_t number, const Call& call, int rank) const {
  return !call.peers[rank].heard &&
         (completed_[rank] + kMaxUnderWay <= number || completed_[rank] < sums_[rank]);
}

absl::Duration GroupLedger::Doubt(uint64_t number, const Call& call) const {
  if (call.heard == size() - 1)
    return IsUnclear(call.peers, rank_) ? kVerdict : absl::ZeroDuration();
  for (int rank = 0; rank < size(); ++rank) {
    if (rank != rank_ && !call.peers[rank].heard && !IsHeldBack(number, call, rank))
      return absl::ZeroDuration();
  }
  return 2 * kVerdict;
}

absl::Duration GroupLedger::OldestDoubt() const {
  const auto oldest = calls_.find(floor_);
  return oldest != calls_.end() && oldest->second.begun ? Doubt(floor_, oldest->second)
                                                        : absl::ZeroDuration();
}

absl::Time GroupLedger::DueTime(uint64_t number, const Call& call,
                                absl::Duration oldest_doubt) const {
  return call.deadline + (call.begun ? Doubt(number, call) : oldest_doubt);
}

absl::Time GroupLedger::NextDeadline(absl::Time now) const {
  const absl::Duration oldest_doubt = OldestDoubt();
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [number, call] : calls_) {
    if (!call.entered || call.complete) continue;
    // The doubt changes with what comes. So it is looked at when the deadline has passed, and now
    // and then.
    next = std::min(next, now < call.deadline
                              ? call.deadline
                              : std::min(DueTime(number, call, oldest_doubt), now + kVerdict));
  }
  return next;
}

int GroupLedger::FirstAbsent(uint64_t number) const {
  const auto call = calls_.find(number);
  if (call == calls_.end()) return -1;
  for (int rank = 0; rank < size(); ++rank) {
    if (rank != rank_ && !call->second.peers[rank].heard) return rank;
  }
  return -1;
}

void GroupLedger::Expire(absl::Time now, GroupEffects& effects) {
  const absl::Duration oldest_doubt = OldestDoubt();
  for (const auto& [number, call] : calls_) {
    if (!call.entered || call.complete || now < call.deadline) continue;
    if (now < DueTime(number, call, oldest_doubt)) continue;
    // A call that waits for earlier ones fails for the reason of the oldest.
    return call.begun ? Fail(Late(number, call, call.timeout), effects)
                      : Fail(Late(floor_, calls_.at(floor_), call.timeout), effects);
  }
}

void GroupLedger::Extend(absl::Time now, absl::Time until) {
  for (auto& [number, call] : calls_) {
    if (call.deadline <= now && !std::exchange(call.put_off, true)) call.deadline = until;
  }
}

absl::Status GroupLedger::Late(uint64_t number, const Call& call, absl::Duration waited) const {
  // Late ranks of four kinds: ranks that have not made the call; ranks that have not sent their
  // data; ranks that have not made the call, perhaps because they wait in older ones; and ranks
  // that have not sent reduced data, perhaps because they wait for ranks of the other kinds. The
  // error names the ranks of the first kind that is not empty.
  std::vector<int> late[4];
  for (int rank = 0; rank < size(); ++rank) {
    const Peer& peer = call.peers[rank];
    if (rank == rank_ || !Needs(call, rank)) continue;
    const int absent = IsHeldBack(number, call, rank) ? 2 : 0;
    late[!peer.heard ? absent : Misses(peer, 0) ? 1 : 3].push_back(rank);
  }
  constexpr const char* kWhy[] = {", which was not made by ", ", for data of ",
                                  ", which was not made by ", ", for sums of "};
  std::string text = absl::StrCat(RankName(rank_), " waited ", absl::FormatDuration(waited), " in ",
                                  CallName(number, call));
  int culprit = -1;
  for (int kind = 0; kind < 4 && culprit < 0; ++kind) {
    if (late[kind].empty()) continue;
    culprit = late[kind].front();
    absl::StrAppend(&text, kWhy[kind],
                    absl::StrJoin(late[kind], ", ", [this](std::string* out, int rank) {
                      out->append(RankName(rank));
                    }));
  }
  if (culprit < 0) text.append(", and did not finish its own part");
  return WithRemedy(OfGroup(absl::StatusCode::kDeadlineExceeded, text, culprit),
                    "see why it is late, raise the timeout, or build the group again without it");
}

}  // namespace psd::services
