/** The signal that asks a supervisor to stop without ending the sandboxes. */
export const STOP_KEEPING_SANDBOXES = "SIGUSR2";
