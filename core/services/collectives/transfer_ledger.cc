#include "core/services/collectives/transfer_ledger.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/quoted.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/services/collectives/collective_call.h"

namespace psd::services {
namespace {

constexpr char kBuildAgain[] = "build the group again without it to go on";

}  // namespace

TransferLedger::TransferLedger(std::string group, std::vector<std::string> members, int rank)
    : group_(std::move(group)),
      members_(std::move(members)),
      rank_(rank),
      next_send_(members_.size()),
      next_receive_(members_.size()) {}

std::string TransferLedger::RankName(int rank) const {
  return absl::StrCat("rank ", rank, " (", members_[rank], ")");
}

absl::Status TransferLedger::OfGroup(absl::StatusCode code, const std::string& text, int culprit,
                                     const std::string& remedy) const {
  ErrorDetail detail;
  if (culprit >= 0) detail.worker = members_[culprit];
  detail.object = absl::StrCat("group ", group_);
  return WithRemedy(
      WithDetail(absl::Status(code, absl::StrCat("group ", Quoted(group_), ": ", text)), detail),
      remedy);
}

absl::Status TransferLedger::CheckRoom(const char* what, int other, const std::string& label,
                                       const AllWaiting& waiting) const {
  if (other < 0 || other >= static_cast<int>(members_.size()) || other == rank_) {
    return OfGroup(
        absl::StatusCode::kInvalidArgument,
        absl::StrCat(what, ": rank ", other, " is no other rank"), -1,
        absl::StrCat("the ranks are 0 to ", members_.size() - 1, ", this one is ", rank_));
  }
  if (label.size() > kMaxLabelBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": a label of ", label.size(), " bytes; at most ", kMaxLabelBytes));
  }
  if (waiting.size() < kMostWaiting) return absl::OkStatus();
  return OfGroup(absl::StatusCode::kResourceExhausted,
                 absl::StrCat(what, ": ", kMostWaiting, " of them wait already"), -1,
                 "wait for some of them");
}

absl::Status TransferLedger::CheckLabels(const Key& key, const std::string& sent,
                                         const std::string& received) const {
  if (sent == received) return absl::OkStatus();
  return OfGroup(absl::StatusCode::kFailedPrecondition,
                 absl::StrCat(RankName(rank_), " sends tensor ", key.second, " to ",
                              RankName(key.first), " with the label ", Quoted(sent),
                              ", which receives it with the label ", Quoted(received)),
                 -1, "send and receive in the same order");
}

absl::StatusOr<uint64_t> TransferLedger::Send(int to, const std::string& label, absl::Time now,
                                              absl::Duration timeout, bool* give) {
  PSD_RETURN_IF_ERROR(CheckRoom("send", to, label, sends_));
  const Key key{to, next_send_[to]++};
  const auto asked = asked_.find(key);
  *give = asked != asked_.end();
  if (*give) {
    PSD_RETURN_IF_ERROR(CheckLabels(key, label, asked->second));
    asked_.erase(asked);
  }
  (*give ? given_ : sends_)[key] = {label, timeout, now + timeout, false};
  return key.second;
}

absl::StatusOr<uint64_t> TransferLedger::Receive(int from, const std::string& label, absl::Time now,
                                                 absl::Duration timeout) {
  PSD_RETURN_IF_ERROR(CheckRoom("receive", from, label, receives_));
  const Key key{from, next_receive_[from]++};
  receives_[key] = {label, timeout, now + timeout, false};
  return key.second;
}

absl::StatusOr<bool> TransferLedger::Asked(int from, uint64_t number, const std::string& label) {
  const Key key{from, number};
  const auto send = sends_.find(key);
  if (send != sends_.end()) {
    PSD_RETURN_IF_ERROR(CheckLabels(key, send->second.label, label));
    given_.insert(sends_.extract(send));
    return true;
  }
  // Numbers before that of the next send were given, or are asked for twice.
  if (number < next_send_[from] || number >= next_send_[from] + kMostWaiting ||
      label.size() > kMaxLabelBytes || !asked_.emplace(key, label).second) {
    return absl::InvalidArgumentError(absl::StrCat("a question for tensor ", number,
                                                   " of a group that no rank of this version "
                                                   "asks"));
  }
  return false;
}

absl::Status TransferLedger::Left(int rank) {
  asked_.erase(asked_.lower_bound({rank, 0}), asked_.lower_bound({rank + 1, 0}));
  const auto first = sends_.lower_bound({rank, 0});
  if (first == sends_.end() || first->first.first != rank) return absl::OkStatus();
  return OfGroup(absl::StatusCode::kFailedPrecondition,
                 absl::StrCat(RankName(rank), " has left before it received tensor ",
                              first->first.second, " from ", RankName(rank_)),
                 rank, kBuildAgain);
}

absl::Status TransferLedger::NotSent(int from, uint64_t number) const {
  return OfGroup(absl::StatusCode::kFailedPrecondition,
                 absl::StrCat(RankName(from), " has left before it sent tensor ", number, " to ",
                              RankName(rank_)),
                 from, kBuildAgain);
}

void TransferLedger::Extend(absl::Time now, absl::Time until) {
  for (AllWaiting* waiting : {&sends_, &receives_}) {
    for (auto& [key, each] : *waiting)
      if (each.deadline <= now && !std::exchange(each.put_off, true)) each.deadline = until;
  }
}

absl::Time TransferLedger::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const AllWaiting* waiting : {&sends_, &receives_})
    for (const auto& [key, each] : *waiting) next = std::min(next, each.deadline);
  return next;
}

absl::Status TransferLedger::Expire(absl::Time now) const {
  for (const AllWaiting* waiting : {&sends_, &receives_}) {
    for (const auto& [key, each] : *waiting) {
      if (now < each.deadline) continue;
      const bool send = waiting == &sends_;
      return OfGroup(
          absl::StatusCode::kDeadlineExceeded,
          absl::StrCat(RankName(rank_), " waited ", absl::FormatDuration(each.timeout), " to ",
                       send ? "send" : "receive", " tensor ", key.second, send ? " to " : " from ",
                       RankName(key.first), ", which did not ", send ? "receive" : "send", " it"),
          key.first, "see why it is late, raise the timeout, or build the group again without it");
    }
  }
  return absl::OkStatus();
}

}  // namespace psd::services
