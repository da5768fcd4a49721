#pragma once

// Remembers the steps, or turns, that have ended on an owner, so that no step is applied twice.
// Pure.
//
// A trainer numbers its steps upwards. With each step it says below which number all of its steps
// have ended; it will never ask for those again. The owner remembers every ended step from that
// number on, and forgets the oldest ones if there are too many. It refuses steps below that number,
// and those that are not newer than a forgotten one. So a step that is neither remembered nor
// refused was never applied.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "core/base/ids.h"

namespace psd::optim {

// The most ended steps of one trainer that are remembered while the trainer has not said that they
// have ended.
inline constexpr size_t kRememberedSteps = 4096;
// The most trainers that are remembered after their sessions have ended, because their messages may
// come late.
inline constexpr size_t kRememberedTrainers = 4096;

// The records of one optimizer. A step's id carries the incarnation of its trainer, and so does a
// session. Thread-compatible.
class StepRecords {
 public:
  enum class Answer {
    kNew,           // never applied; may be applied now
    kEnded,         // it was applied
    kTooOld,        // the trainer has given it up, or it is so old that its fate is unknown
    kSessionEnded,  // no step of this session may be applied any more
  };
  Answer Find(GlobalId session, GlobalId step) const;

  // Every step of the trainer with a smaller number than `step_counter` has ended for the trainer.
  void Acknowledge(Incarnation trainer, uint64_t step_counter);
  // Records that the step was applied in this session. Requires: Find returns kNew.
  void End(GlobalId session, GlobalId step);
  // Records that the step is over for its trainer, in any session.
  void End(GlobalId step);
  // Records that the trainer has a session here. Does nothing if that session has ended already.
  void Meet(GlobalId session);
  // Records that the session {incarnation, epoch} has ended for ever, and with it the trainer's
  // earlier ones. Its steps are forgotten, and older ones are refused. The notice may come late:
  // steps of a later session stay as they are.
  void EndSession(GlobalId session);

  // Whether the session, or a later one of its trainer, is known to have ended.
  bool HasEnded(GlobalId session) const;
  // Whether the step may still come: its trainer has a session here that has not ended, and the
  // step has not ended.
  bool Expects(GlobalId step) const;
  // The trainer's last session that has stepped here or was met, if one is remembered.
  std::optional<GlobalId> LastSession(Incarnation trainer) const;
  // Whether anything is remembered of a trainer.
  bool Knows(Incarnation trainer) const { return trainers_.count(trainer) > 0; }
  // The number of ended steps that are remembered one by one.
  size_t remembered() const;

 private:
  struct Trainer {
    uint64_t floor = 0;                  // steps up to this one have ended
    std::map<uint64_t, uint64_t> ended;  // above `floor`: the epochs of their sessions
    std::optional<uint64_t> last_epoch;  // of the last session that was met or has stepped
    std::optional<uint64_t> ended_epoch;
    bool departed = false;    // its last session has ended
    uint32_t departures = 0;  // how often the trainer is among departures_
  };
  static void Raise(Trainer& trainer, uint64_t floor);

  std::map<Incarnation, Trainer> trainers_;
  // Trainers in the order in which their sessions ended. A trainer that came back and departed
  // again is listed more than once, and is forgotten with its last departure.
  std::deque<Incarnation> departures_;
};

}  // namespace psd::optim
