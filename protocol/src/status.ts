/** `torpor status --json`. */
export interface InstanceStatus {
  version: string;
  url: string;
  state_dir: string;
  api_key_file: string;
  driver: string;
  acceleration: string;
  pids: { server: number; host: number };
}
