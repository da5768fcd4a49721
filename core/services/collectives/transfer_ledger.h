#pragma once

// One rank's record of the tensors that pairs of ranks send each other: which sends and receives
// have met. Pure, as GroupLedger.
//
// The sends from one rank to another, and the receives there, are numbered from 0 in the order in
// which they are made; those of the same number meet. A receive asks the sender, which answers when
// it makes its send. So a tensor travels only when both ranks are ready for it.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace psd::services {

// Thread-compatible.
class TransferLedger {
 public:
  // The other rank and the number of the send or receive.
  using Key = std::pair<int, uint64_t>;
  // The limit for three numbers: sends that wait, receives that wait, and questions of one other
  // rank. Each receive that waits is a call under way. A session may have 1024 of them, so there is
  // room for the calls of the group.
  static constexpr size_t kMostWaiting = 256;

  // `group` and `members` are the names in errors.
  TransferLedger(std::string group, std::vector<std::string> members, int rank);

  // This rank makes its next send to `to`. Returns its number; `*give` says whether it has been
  // asked for, and is to be given now.
  // Errors: INVALID_ARGUMENT (no such other rank), RESOURCE_EXHAUSTED: nothing was sent.
  // FAILED_PRECONDITION: the two ranks differ in the label, so the group is to fail.
  absl::StatusOr<uint64_t> Send(int to, const std::string& label, absl::Time now,
                                absl::Duration timeout, bool* give);
  // This rank makes its next receive from `from`, and is to ask for it. Returns its number.
  // Errors: INVALID_ARGUMENT, RESOURCE_EXHAUSTED, as Send.
  absl::StatusOr<uint64_t> Receive(int from, const std::string& label, absl::Time now,
                                   absl::Duration timeout);
  // `from` asks for a send. Returns whether it is to be given now. Errors: FAILED_PRECONDITION, as
  // Send; INVALID_ARGUMENT for what an honest rank never asks.
  absl::StatusOr<bool> Asked(int from, uint64_t number, const std::string& label);
  // A send that was to be given was given, or was not, because the other rank no longer waits for
  // it. In the second case it waits again.
  void Given(int to, uint64_t number) { given_.erase({to, number}); }
  void NotTaken(int to, uint64_t number) { sends_.insert(given_.extract({to, number})); }
  // `from` no longer waits for that send.
  void Forget(int from, uint64_t number) { asked_.erase({from, number}); }
  // The tensor of a receive has come.
  void Got(int from, uint64_t number) { receives_.erase({from, number}); }
  // `rank` has left, and no longer waits for any send. It still answers the questions that it has
  // got, so everything that it sent before arrives. Returns an error if a send to it waits.
  absl::Status Left(int rank);
  // The error of a receive from a rank that has left without the send.
  absl::Status NotSent(int from, uint64_t number) const;

  // Puts off the deadlines up to `now` until `until`, once for each send and receive.
  void Extend(absl::Time now, absl::Time until);

  // The earliest deadline of a send or receive that waits; InfiniteFuture if none does.
  absl::Time NextDeadline() const;
  // Returns DEADLINE_EXCEEDED naming the other rank if something has waited too long.
  absl::Status Expire(absl::Time now) const;

 private:
  struct Waiting {
    std::string label;
    absl::Duration timeout;
    absl::Time deadline;
    bool put_off = false;
  };
  using AllWaiting = std::map<Key, Waiting>;

  absl::Status CheckRoom(const char* what, int other, const std::string& label,
                         const AllWaiting& waiting) const;
  absl::Status CheckLabels(const Key& key, const std::string& sent,
                           const std::string& received) const;
  std::string RankName(int rank) const;
  absl::Status OfGroup(absl::StatusCode code, const std::string& text, int culprit,
                       const std::string& remedy) const;

  const std::string group_;
  const std::vector<std::string> members_;
  const int rank_;
  std::vector<uint64_t> next_send_, next_receive_;  // by rank
  AllWaiting sends_, receives_;
  AllWaiting given_;                  // sends that are being given; they have no deadline
  std::map<Key, std::string> asked_;  // the labels of receives that came before the send
};

}  // namespace psd::services
