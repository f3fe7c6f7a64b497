import { run } from "@torpor/base";
import { GUEST_ADDRESS } from "./address-plan.ts";

/**
 * Sends ICMP "port unreachable" (RFC 792) about each TCP connection that the kernel tracks from an address and that has had
 * no answer, with the addresses as the guest knows them: its stack ends an attempt over that, whenever it was last sent. A
 * kernel that lists no connections has none. In Perl, since Node has no raw sockets, and Debian none without Perl.
 */
const REFUSE = `
use strict; use warnings; use Socket;
my ($slot, $guest) = @ARGV;
open(my $tracked, "<", "/proc/net/nf_conntrack") or exit 0;
socket(my $raw, PF_INET, SOCK_RAW, 1) or die "raw socket: $!";
while (<$tracked>) {
  my ($remote, $port, $remote_port) = /\\bSYN_SENT src=\\Q$slot\\E dst=(\\S+) sport=(\\d+) dport=(\\d+) / or next;
  my $about = pack("C2n3C2na4a4n2N", 0x45, 0, 40, 0, 0, 64, 6, 0, inet_aton($guest), inet_aton($remote), $port, $remote_port, 0);
  my $sum = unpack("%32n*", pack("C2nN", 3, 3, 0, 0) . $about);
  $sum = ($sum & 0xffff) + ($sum >> 16) for 1 .. 2;
  send($raw, pack("C2nN", 3, 3, ~$sum & 0xffff, 0) . $about, 0, sockaddr_in(0, inet_aton($slot))) or die "send: $!";
}
`;

/**
 * Ends the connection attempts of a guest that have had no answer, as if they were refused.
 *
 * @param netns the router's
 * @param address the guest's, outside
 */
export async function refuseAttempts(netns: string, address: string): Promise<void> {
  await run(["ip", "netns", "exec", netns, "perl", "-", address, GUEST_ADDRESS], {
    input: REFUSE,
    timeoutMs: 20_000,
  });
}
