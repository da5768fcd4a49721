#pragma once

// A peer of the shared-memory carrier whose packets and rings are written by the test, correctly or
// not.

#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "core/base/memory_budget.h"
#include "core/base/status.h"
#include "core/carrier/frame.h"
#include "core/carrier/shm/introduction.h"
#include "core/carrier/shm/ring_writer.h"
#include "core/carrier/shm/segment.h"
#include "core/carrier/shm/unix_socket.h"

namespace psd::carrier {

// Thread-compatible.
class ShmRawPeer {
 public:
  explicit ShmRawPeer(const std::string& address, const RingSizes& sizes = {})
      : account_(MemoryAccount::Create(0, NewHeapAllocator())) {
    auto socket = ConnectUnix(address);
    PSD_CHECK(socket.ok(), "the carrier listens");
    socket_ = *std::move(socket);
    auto own = OwnSegment::Create(sizes, *account_);
    PSD_CHECK(own.ok(), "there is memory for rings");
    own_ = *std::move(own);
  }

  int fd() const { return socket_.get(); }
  OwnSegment& own() { return *own_; }
  const OwnSegment& own() const { return *own_; }
  SegmentHeader& header() { return own_->header(); }
  std::string Hello() const { return EncodeIntroduction({own_->sizes(), Limits()}); }

  void Introduce() { SendPacket(fd(), PacketKind::kHello, Hello(), own_->fd()); }
  // Introduces itself and waits until the carrier has answered.
  void Open() {
    Introduce();
    auto hello = AwaitPacket();
    PSD_CHECK(hello.ok() && hello->kind == PacketKind::kHello, "the carrier answers");
    auto introduction = DecodeIntroduction(hello->body);
    PSD_CHECK(introduction.ok(), "in order");
    auto peer = PeerSegment::Map(introduction->rings, std::move(hello->fd));
    PSD_CHECK(peer.ok(), "with good memory");
    peer_ = *std::move(peer);
    for (size_t ring = 0; ring < own_->sizes().rings(); ++ring) {
      writers_.push_back(std::make_unique<RingWriter>(own_->ring(ring), own_->sizes().BytesOf(ring),
                                                      &header().rings[ring].out,
                                                      &peer_->header().rings[ring].in));
    }
  }
  void Ring() { SendPacket(fd(), PacketKind::kBell); }

  // Gives the carrier back all space of one of its rings, without a look at what is in it.
  void ReadAll(size_t ring) {
    const uint64_t tail = peer_->header().rings[ring].out.tail.load();
    header().rings[ring].in.head.store(tail);
  }

  // Whether the carrier waits for space in one of its rings, and for the bell.
  bool Starves(size_t ring) const { return peer_->header().rings[ring].out.starved.load() != 0; }

  // Writes one record with the bytes of `frames`, and rings.
  void Write(size_t ring, FrameEncoder& frames) {
    PSD_CHECK(TryWrite(ring, frames), "the ring has space");
  }
  // As Write. Returns false if there was no space for all of it.
  bool TryWrite(size_t ring, FrameEncoder& frames) {
    const bool whole = WriteSilently(ring, frames);
    Ring();
    return whole;
  }
  // As TryWrite, but does not ring the bell.
  bool WriteSilently(size_t ring, FrameEncoder& frames) {
    OutgoingFrame frame;
    frame.bytes = frames.bytes();
    frame.parts = frames.Take();
    auto whole = writers_[ring]->Write(frame);
    return whole.ok() && *whole;
  }

  // Errors: UNAVAILABLE if the carrier has ended the link, or sends nothing for a minute.
  absl::StatusOr<Packet> AwaitPacket() {
    while (true) {
      pollfd readable = {fd(), POLLIN, 0};
      if (poll(&readable, 1, /*timeout=*/60'000) <= 0) {
        return absl::UnavailableError("nothing came");
      }
      PSD_ASSIGN_OR_RETURN(std::optional<Packet> packet, ReceivePacket(fd()));
      if (packet.has_value()) return *std::move(packet);
    }
  }
  // Waits until the carrier has ended the link. Returns why, if it said so.
  std::string AwaitEnd() {
    std::string why;
    while (true) {
      auto packet = AwaitPacket();
      if (!packet.ok()) return why;
      if (packet->kind == PacketKind::kRefusal) why = packet->body;
    }
  }

 private:
  const std::shared_ptr<MemoryAccount> account_;
  UniqueFd socket_;
  std::unique_ptr<OwnSegment> own_;
  std::unique_ptr<PeerSegment> peer_;
  std::vector<std::unique_ptr<RingWriter>> writers_;
};

}  // namespace psd::carrier
